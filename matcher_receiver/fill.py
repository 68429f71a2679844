"""A gap, from the moment it is seen, and its filling: rows from the database, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_kernel.errors import GapError, NotYetReadable, RowsArchived, SealMismatch
from chain_kernel.model import Gap
from matcher_receiver.cancellable_wait import AWAY, SECOND_NS, Patience
from matcher_receiver.decisions import Fill, Halt
from matcher_receiver.head_poller import compare_last_batch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from chain_kernel.clock import Clock
    from chain_kernel.model import Cause, Outcome, Run
    from chain_kernel.ports import GapSource
    from matcher_receiver.cancellable_wait import CancellableWait
    from matcher_receiver.core import ReceiveCore
    from matcher_receiver.decisions import StandingDecision
    from matcher_receiver.head_poller import HeadWatch
    from matcher_receiver.stats import GapLedger, ReceiverCounters


class OpenFill:
    """The open fill, one at a time. A page is read when it is requested."""

    def __init__(
        self,
        core: ReceiveCore,
        gap_source: GapSource,
        watch: HeadWatch,
        waits: CancellableWait,
        *,
        ledger: GapLedger,
        counters: ReceiverCounters,
        clock: Clock,
        standby_wait_seconds: float,
    ) -> None:
        self._core = core
        self._gap_source = gap_source
        self._watch = watch
        self._waits = waits
        self._ledger = ledger
        self._counters = counters
        self._clock = clock
        self._patience = Patience(standby_wait_seconds, clock)
        self._runs: AsyncGenerator[Run, None] | None = None
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
        core = self._core
        if self._seen is not None:
            return (core.head.id, self._seen.until_id)
        return (core.head.id, core.fill_until) if core.is_filling else None

    def see(self, fill: Fill) -> None:
        """Note that a frame shows missing rows; the database has not been asked for them yet.

        Until it has, which may last as long as it is away, nothing can be delivered: this must not
        look like a receiver that is in step.
        """
        if self._seen is None:
            self._begin()
            self._seen = fill
            self._core.see_gap()
            self._watch.lag.suspect(fill.until_id)

    def deny(self) -> None:
        """Forget what a frame reported: the database denies it, or could not be asked."""
        self._seen = None
        self._core.deny_gap()
        self._watch.lag.dismiss()

    def open(self, fill: Fill) -> None:
        """Begin to read up to `fill.until_id`. Its time counts from when the gap was seen."""
        if self._seen is None:
            self._begin()
        self._seen = None
        self._core.open_fill(fill)
        if fill.cause != "start":
            # Written in the background, and replaced when the gap is filled: a gap that lasts is in
            # the ledger even if this process ends before the gap does.
            self._note(self._after_id, fill.until_id, 0, "open")

    def _begin(self) -> None:
        clock = self._clock
        self._after_id = self._core.head.id
        self._found_at_ns, self._began_ns = clock.wall_ns(), clock.monotonic_ns()
        self._rows, self._source, self._has_failed = 0, "", False

    def open_if_behind(self, decision: StandingDecision | None) -> bool:
        """Open a fill if the database has more than was delivered; return whether it has."""
        if not isinstance(decision, Fill):
            return False
        self.open(decision)
        return True

    async def next(self) -> Run | None:
        """Return the next run; None when the call has to be retried.

        Raises HaltError; RowsMissing, RowsArchived, and NotYetReadable after a deadline.
        """
        try:
            return await self._take(await self._read())
        except SealMismatch:
            await self.drop()
            await compare_last_batch(self._core, self._gap_source, self._waits)
        except NotYetReadable as error:
            await self.drop()
            if self._patience.is_over():
                until_id = max(error.until_id, self._core.fill_until)
                self._note_failure(until_id, "not yet readable")
                raise
            await self._waits.pause(error)
        except AWAY as error:
            await self.drop()
            await self._waits.pause(error)
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
        """Read the next run, and measure the time; None when the source has ended."""
        core = self._core
        if self._rows and self._watch.lag.must_count:
            await self._watch.count()  # a long fill, as its first run shows
        if self._runs is None:
            self._runs = self._gap_source.runs(core.head, core.fill_until)
        began_ns = self._clock.monotonic_ns()
        try:
            return await anext(self._runs, None)
        finally:
            self._counters.fill_seconds += (self._clock.monotonic_ns() - began_ns) / SECOND_NS

    async def _take(self, run: Run | None) -> Run | None:
        core = self._core
        if run is None:
            # The source ended before the range did, which its port forbids. Ask it again.
            await self.drop()
            await self._waits.pause(NotYetReadable(core.head.id, core.fill_until))
            return None
        if run.last_id >= core.fill_until:
            await self.drop()  # before the head moves: from there on nothing is awaited
        accepted = core.accept_filled(run)
        if isinstance(accepted, Halt):
            raise accepted.error
        self._waits.succeeded()
        self._patience.reset()
        self._source = run.source
        self._count(len(run.events))
        if not core.is_filling:
            self._end()
        return accepted

    def _count(self, rows: int) -> None:
        self._rows += rows
        if self._core.fill_cause == "start":
            self._counters.rows_caught_up += rows
        else:
            self._counters.rows_filled += rows

    def _end(self) -> None:
        self._watch.note_look()
        core = self._core
        if core.fill_cause != "start":
            self._note(self._after_id, core.head.id, self._rows, "filled")

    def _note_failure(self, until_id: int, outcome: Outcome) -> None:
        """Note where the receiver is, and the rows that it could not get: those after them, which
        it would read next, are there."""
        self._has_failed = True
        self._note(self._core.head.id, until_id, 0, outcome)

    def _note_interruption(self) -> None:
        """Note a gap that is neither filled nor given up at the end of this receiver."""
        until_id = self.range[1] if self.range else 0
        has_its_entry = self._has_failed and self._rows == 0
        if until_id and self._cause != "start" and not has_its_entry:
            self._note(self._after_id, until_id, self._rows, "interrupted")

    @property
    def _cause(self) -> Cause:
        return self._core.fill_cause if self._seen is None else self._seen.cause

    def _note(self, after_id: int, until_id: int, rows: int, outcome: Outcome) -> None:
        self._ledger.add(
            Gap(
                chain_id=self._core.chain_id,
                after_id=after_id,
                until_id=until_id,
                cause=self._cause,
                source=self._source or self._watch.source_name,
                rows=rows,
                found_at_ns=self._found_at_ns,
                duration_ns=self._clock.monotonic_ns() - self._began_ns,
                outcome=outcome,
            )
        )

    async def close(self) -> None:
        """End; a gap that is still open stays in the ledger as interrupted."""
        self._note_interruption()
        await self.drop()

    async def drop(self) -> None:
        """Release what the source holds; the next page is requested again."""
        runs, self._runs = self._runs, None
        if runs is not None:
            await runs.aclose()
