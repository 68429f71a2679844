"""A gap, from the moment it is seen, and its filling: rows of the database, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matcher_receiver.decisions import Fill, Halt
from matcher_receiver.kit import AWAY
from matcher_receiver.pages import compare, end_runs, next_run
from matcher_receiver.waits import Patience
from orderchain.errors import GapError, NotYetReadable, RowsArchived, SealMismatch
from orderchain.gap import Gap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from matcher_receiver.decisions import StandingDecision
    from matcher_receiver.kit import Kit
    from matcher_receiver.watch import HeadWatch
    from orderchain.gap import Cause, Outcome
    from orderchain.run import Run


class Filling:
    """The fill that is open, one at a time. A page is read when it is asked for."""

    def __init__(self, kit: Kit, watch: HeadWatch) -> None:
        self._kit = kit
        self._watch = watch
        self._patience = Patience(kit.config.standby_wait_seconds, kit.clock)
        self._runs: AsyncIterator[Run] | None = None
        self._seen: Fill | None = None
        self._has_failed = False
        self._after_id = 0
        self._found_at_ns = 0
        self._began_ns = 0
        self._rows = 0
        self._source = ""

    @property
    def range(self) -> tuple[int, int] | None:
        """The rows that are missing, from after one id up to another; None when none are."""
        core = self._kit.core
        if self._seen is not None:
            return (core.head.id, self._seen.until_id)
        return (core.head.id, core.fill_until) if core.is_filling else None

    @property
    def is_open(self) -> bool:
        """Whether rows are still to be read."""
        return self._kit.core.is_filling

    def see(self, fill: Fill) -> None:
        """Note that a frame tells of missing rows; the database has not been asked for them yet.

        Until it has, which may last as long as it is away, nothing can be handed on: that is not
        to look like a receiver that is in step.
        """
        if self._seen is None:
            self._begin()
            self._seen = fill
            self._kit.core.see_gap()
            self._watch.lag.suspect(fill.until_id)

    def deny(self) -> None:
        """Forget what a frame told of: the database denies it, or nobody could be asked."""
        self._seen = None
        self._kit.core.deny_gap()
        self._watch.lag.dismiss()

    def open(self, fill: Fill) -> None:
        """Set out to read up to `fill.until_id`. The time since the gap was seen is its own."""
        if self._seen is None:
            self._begin()
        self._seen = None
        self._kit.core.open_fill(fill)
        if fill.cause != "start":
            # Written behind the delivery, and replaced when the gap is filled: one that lasts is
            # in the ledger also when this process does not live to see its end.
            self._note(self._after_id, fill.until_id, 0, "open")

    def _begin(self) -> None:
        clock = self._kit.clock
        self._after_id = self._kit.core.head.id
        self._found_at_ns, self._began_ns = clock.wall_ns(), clock.monotonic_ns()
        self._rows, self._source, self._has_failed = 0, "", False

    def open_if_behind(self, decision: StandingDecision | None) -> bool:
        """Open a fill if the database has more than was delivered, and say so."""
        if not isinstance(decision, Fill):
            return False
        self.open(decision)
        return True

    async def next(self) -> Run | None:
        """Return the next run; None when it has to be tried again.

        Raises HaltError; RowsMissing, RowsArchived, and NotYetReadable after a deadline.
        """
        try:
            return await self._take(await self._read())
        except SealMismatch:
            await self.drop()
            await compare(self._kit)
        except NotYetReadable as error:
            await self.drop()
            if self._patience.is_over():
                self._note_failure(error.until_id, "not yet readable")
                raise
            await self._kit.waits.pause(error)
        except AWAY as error:
            await self.drop()
            await self._kit.waits.pause(error)
        except GapError as error:
            await self.drop()
            outcome: Outcome = "archived" if isinstance(error, RowsArchived) else "missing"
            self._note_failure(error.until_id, outcome)
            raise
        except BaseException:
            await self.drop()
            raise
        return None

    async def _read(self) -> Run | None:
        """Read on, and take the time; None when the source has ended."""
        kit, core = self._kit, self._kit.core
        if self._runs is None:
            self._runs = kit.gap_source.runs(core.head, core.fill_until)
        began_ns = kit.clock.monotonic_ns()
        try:
            return await next_run(self._runs)
        finally:
            kit.counters.fill_ns += kit.clock.monotonic_ns() - began_ns

    async def _take(self, run: Run | None) -> Run | None:
        core = self._kit.core
        if run is None:
            # The source ended before the range did, which its port forbids. Ask it again.
            await self.drop()
            await self._kit.waits.pause(NotYetReadable(core.head.id, core.fill_until))
            return None
        if run.last_id >= core.fill_until:
            await self.drop()  # before the head moves: from there on nothing is awaited
        accepted = core.accept_filled(run)
        if isinstance(accepted, Halt):
            raise accepted.error
        self._kit.waits.succeeded()
        self._patience.reset()
        self._source = run.source
        self._count(len(run.events))
        if not core.is_filling:
            self._end()
        return accepted

    def _count(self, rows: int) -> None:
        self._rows += rows
        if self._kit.core.fill_cause == "start":
            self._kit.counters.rows_caught_up += rows
        else:
            self._kit.counters.rows_filled += rows

    def _end(self) -> None:
        self._watch.note_look()
        core = self._kit.core
        if core.fill_cause != "start":
            self._note(self._after_id, core.head.id, self._rows, "filled")

    def _note_failure(self, until_id: int, outcome: Outcome) -> None:
        """Note where the receiver stands, and what it stands before."""
        self._has_failed = True
        after_id = self._kit.core.head.id
        self._note(after_id, max(until_id, self._kit.core.fill_until), 0, outcome)

    def _note_interruption(self) -> None:
        """Note a gap that is neither filled nor given up at the end of this receiver."""
        until_id = self.range[1] if self.range else 0
        has_its_entry = self._has_failed and self._rows == 0
        if until_id and self._cause != "start" and not has_its_entry:
            self._note(self._after_id, until_id, self._rows, "interrupted")

    @property
    def _cause(self) -> Cause:
        return self._kit.core.fill_cause if self._seen is None else self._seen.cause

    def _note(self, after_id: int, until_id: int, rows: int, outcome: Outcome) -> None:
        kit = self._kit
        kit.ledger.add(
            Gap(
                chain_id=kit.core.chain_id,
                after_id=after_id,
                until_id=until_id,
                cause=self._cause,
                source=self._source or self._watch.source_name,
                rows=rows,
                found_at_ns=self._found_at_ns,
                duration_ns=kit.clock.monotonic_ns() - self._began_ns,
                outcome=outcome,
            )
        )

    async def close(self) -> None:
        """End; a gap that is still open stays in the ledger as one that was interrupted."""
        self._note_interruption()
        await self.drop()

    async def drop(self) -> None:
        """Let go of what the source holds; the next page is asked for anew."""
        runs, self._runs = self._runs, None
        if runs is not None:
            await end_runs(runs)
