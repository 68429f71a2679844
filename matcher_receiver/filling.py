"""The filling of a gap: rows of the database, page by page, until nothing is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matcher_receiver.decisions import Fill, Halt
from matcher_receiver.gaps import Gap
from matcher_receiver.kit import AWAY
from matcher_receiver.pages import compare, end_runs, next_run
from matcher_receiver.waits import Patience
from orderchain.errors import NotYetReadable, SealMismatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from matcher_receiver.decisions import StandingDecision
    from matcher_receiver.kit import Kit
    from matcher_receiver.watch import HeadWatch
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
        self._rows = 0

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
        core = self._kit.core
        if self._runs is None:
            self._runs = self._kit.gap_source.runs(core.head, core.fill_until)
        try:
            run = await self._kit.waits.until_done(next_run(self._runs))
        except SealMismatch:
            await self.drop()
            await compare(self._kit)
            return None
        except NotYetReadable as error:
            await self.drop()
            if self._patience.is_over():
                raise
            await self._kit.waits.pause(error)
            return None
        except AWAY as error:
            await self.drop()
            await self._kit.waits.pause(error)
            return None
        except BaseException:
            await self.drop()
            raise
        return await self._take(run)

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
        kit, core = self._kit, self._kit.core
        if core.fill_cause == "start":
            return
        kit.ledger.add(
            Gap(
                chain_id=core.chain_id,
                after_id=self._after_id,
                until_id=core.head.id,
                cause=core.fill_cause,
                source=self._watch.source_name,
                rows=self._rows,
                found_at_ns=self._found_at_ns,
                duration_ns=kit.clock.monotonic_ns() - self._began_ns,
            )
        )

    async def drop(self) -> None:
        """Let go of what the source holds; the next page is asked for anew."""
        runs, self._runs = self._runs, None
        if runs is not None:
            await end_runs(runs)
