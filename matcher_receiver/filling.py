"""The filling of a gap: rows of the database, page by page, until nothing is missing."""

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
    from orderchain.gap import Outcome
    from orderchain.run import Run


class Filling:
    """The fill that is open, one at a time. A page is read when it is asked for."""

    def __init__(self, kit: Kit, watch: HeadWatch) -> None:
        self._kit = kit
        self._watch = watch
        self._patience = Patience(kit.config.standby_wait_seconds, kit.clock)
        self._runs: AsyncIterator[Run] | None = None
        self._after_id = 0
        self._found_at_ns = 0
        self._began_ns = 0
        self._rows = 0
        self._source = ""

    @property
    def range(self) -> tuple[int, int] | None:
        """The rows still to be read, from behind one id up to another; None when none are."""
        core = self._kit.core
        return (core.head.id, core.fill_until) if core.is_filling else None

    @property
    def is_open(self) -> bool:
        """Whether rows are still to be read."""
        return self._kit.core.is_filling

    def open(self, fill: Fill) -> None:
        """Set out to read up to `fill.until_id`."""
        kit = self._kit
        kit.core.open_fill(fill)
        self._after_id = kit.core.head.id
        self._found_at_ns, self._began_ns = kit.clock.wall_ns(), kit.clock.monotonic_ns()
        self._rows, self._source = 0, ""

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
            return await kit.waits.until_done(next_run(self._runs))
        finally:
            kit.counters.fill_ns += kit.clock.monotonic_ns() - began_ns

    async def _take(self, run: Run | None) -> Run | None:
        core = self._kit.core
        if run is None:
            # The source ended before the range did, which its port forbids. Ask it again.
            await self.drop()
            await self._kit.waits.pause(NotYetReadable(core.head.id, core.fill_until))
            return None
        accepted = core.accept_filled(run)
        if isinstance(accepted, Halt):
            raise accepted.error
        self._kit.waits.succeeded()
        self._patience.reset()
        self._source = run.source
        self._count(len(run.events))
        if not core.is_filling:
            await self._end()
        return accepted

    def _count(self, rows: int) -> None:
        self._rows += rows
        if self._kit.core.fill_cause == "start":
            self._kit.counters.rows_caught_up += rows
        else:
            self._kit.counters.rows_filled += rows

    async def _end(self) -> None:
        await self.drop()
        self._watch.note_look()
        core = self._kit.core
        if core.fill_cause != "start":
            self._note(self._after_id, core.head.id, self._rows, "filled")

    def _note_failure(self, until_id: int, outcome: Outcome) -> None:
        """Note where the receiver stands, and what it stands before."""
        after_id = self._kit.core.head.id
        self._note(after_id, max(until_id, self._kit.core.fill_until), 0, outcome)

    def _note(self, after_id: int, until_id: int, rows: int, outcome: Outcome) -> None:
        kit = self._kit
        kit.ledger.add(
            Gap(
                chain_id=kit.core.chain_id,
                after_id=after_id,
                until_id=until_id,
                cause=kit.core.fill_cause,
                source=self._source or self._watch.source_name,
                rows=rows,
                found_at_ns=self._found_at_ns,
                duration_ns=kit.clock.monotonic_ns() - self._began_ns,
                outcome=outcome,
            )
        )

    async def drop(self) -> None:
        """Let go of what the source holds; the next page is asked for anew."""
        runs, self._runs = self._runs, None
        if runs is not None:
            await end_runs(runs)
