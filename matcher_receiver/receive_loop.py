"""The receive loop, from one start on: one step after the other, run by run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chain_kernel.errors import NotYetReadable
from chain_kernel.model import Run
from matcher_receiver.cancellable_wait import AWAY, SECOND_NS
from matcher_receiver.decisions import Fill, Halt, InStep
from matcher_receiver.fill import OpenFill
from matcher_receiver.head_poller import HeadWatch
from matcher_receiver.live_frames import LiveFrames

if TYPE_CHECKING:
    from chain_kernel.clock import Clock
    from chain_kernel.model import Mark, Standing
    from chain_kernel.ports import FrameSource, GapSource
    from chain_kernel.tracing import Tracing
    from matcher_receiver.cancellable_wait import CancellableWait
    from matcher_receiver.config import ReceiverConfig
    from matcher_receiver.core import ReceiveCore
    from matcher_receiver.decisions import State
    from matcher_receiver.stats import GapLedger, ReceiverCounters


class ReceiveLoop:
    """Decides where rows come from next, and when that is over.

    It pulls: nothing is read before the caller asks for the next run. The caller's own task
    processes frames that are at hand. Whatever has to be waited for is work of its own
    (`CancellableWait.outcome`), which a cancelled caller does not interrupt: a cancellation reaches
    no line that moves the head, nor any between that and the delivery.
    """

    def __init__(
        self,
        config: ReceiverConfig,
        core: ReceiveCore,
        frames: FrameSource,
        gap_source: GapSource,
        waits: CancellableWait,
        *,
        ledger: GapLedger,
        counters: ReceiverCounters,
        clock: Clock,
        until_id: int | None,
        tracing: Tracing | None = None,
    ) -> None:
        self._core = core
        self._waits = waits
        self._counters = counters
        self._clock = clock
        self._idle_seconds = config.idle_seconds
        self._until_id = until_id
        self.watch = HeadWatch(
            config, core, gap_source, waits, ledger=ledger, counters=counters, clock=clock
        )
        self.filling = OpenFill(
            core,
            gap_source,
            self.watch,
            waits,
            ledger=ledger,
            counters=counters,
            clock=clock,
            standby_wait_seconds=config.tuning.standby_wait_seconds,
        )
        self._live = LiveFrames(
            core,
            frames,
            self.watch,
            self.filling,
            waits,
            counters=counters,
            clock=clock,
            standby_wait_seconds=config.tuning.standby_wait_seconds,
            tracing=tracing,
        )
        self._uncut: Run | None = None
        self._is_last = False
        self._last_run_ns = clock.monotonic_ns()
        self._handed_ns: int | None = None
        self.is_over = until_id is not None and core.head.id >= until_id
        """Whether the end that was set is reached; never reset."""

    @property
    def state(self) -> State:
        """What the receiver is doing."""
        return self._core.state

    def begin(self, standing: Standing) -> None:
        """Take the first reading of our own place. Raises HaltError."""
        self.watch.note(standing, self._core.head.id)
        decision = self._core.judge_standing(standing, "start")
        if isinstance(decision, Fill):
            self.filling.open(decision)
        elif isinstance(decision, Halt):
            raise decision.error
        # Wait: a standby that has not come as far as our checkpoint. It is asked again later.

    async def step(self) -> Run | None:
        """Do the next step: continue a fill, judge a frame, or wait for one.

        Returns a run that is to be delivered, None when there is none yet. Raises HaltError,
        GapError, NotYetReadable, StopAsked.
        """
        self._forgive_callers_time()
        if self._has_frame and not self._waits.is_busy:
            # Nothing here waits while frames are at hand, and a caller that works in memory never
            # does. So give way once per frame: the next fetch is requested and read while these are
            # processed (a fifth to two fifths more rows per second), and no chain delays the others
            # of a process. Nothing has been taken yet that a cancellation could lose.
            await asyncio.sleep(0)
            run = self._next_frame()
        else:
            run = await self._waits.outcome(self._work)
        return None if run is None else self._hand_out(run)

    @property
    def _has_frame(self) -> bool:
        """Whether a frame can be judged now, without waiting for anything."""
        return not (
            self._live.is_empty
            or self._live.has_question
            or self.watch.is_contradicted
            or self._core.is_filling
            or self._uncut is not None
        )

    def _next_frame(self) -> Run | None:
        run = self._live.next()
        if run is None:
            return None
        self._counters.source = "kafka"
        if self._reaches_end(run):
            self._uncut = run
            return None
        return run

    async def _work(self) -> Run | None:
        """Do what has to be waited for; return a run that is ready to be delivered."""
        run = self._uncut or await self._read_on()
        if run is None or not self._reaches_end(run):
            return run
        self._uncut = run
        run = await self._cut(run)
        self._uncut, self._is_last = None, True
        if run is None:
            self.is_over = True
        return run

    async def _read_on(self) -> Run | None:
        if self._core.is_filling:
            run = await self.filling.next()
            if run is not None:
                self._counters.source = run.source or self.watch.source_name
            return run
        if self.watch.is_contradicted:
            await self.watch.answer_denial()
        elif self._live.has_question:
            await self._live.settle()
        else:
            await self._receive()
        return None

    async def _receive(self) -> None:
        if await self._has_ended_idle():
            return
        if self.watch.is_due:
            # Records may come and yet be useless: garbage, or the frames of a former leader.
            await self._live.poll()
            if self._core.is_filling:
                return
        await self._live.receive(self._patience())

    async def close(self) -> None:
        """End, and release what is open."""
        self.is_over = True
        await self._waits.close()
        await self.watch.close()
        await self.filling.close()

    # -- handing out ---------------------------------------------------------------------------

    def _hand_out(self, run: Run) -> Run:
        self.is_over = self.is_over or self._is_last
        self._handed_ns = self._last_run_ns = self._clock.monotonic_ns()
        self.watch.lag.deliver(run.last_id, len(run.events))
        return run

    def _reaches_end(self, run: Run) -> bool:
        return self._until_id is not None and run.last_id >= self._until_id

    async def _cut(self, run: Run) -> Run | None:
        """Return the rows of `run` up to the end that was set; None if there are none."""
        until_id = run.last_id if self._until_id is None else self._until_id
        events = [event for event in run.events if event.id <= until_id]
        if len(events) == len(run.events):
            return run
        if not events:
            return None
        mark = await self._mark_at(events[-1].id)
        return Run(chain_id=run.chain_id, events=events, end=mark)

    async def _mark_at(self, row_id: int) -> Mark:
        """Return the mark after a row that was read, however long that takes."""
        while True:
            try:
                standing = await self.watch.read(row_id)
            except AWAY as error:
                await self._waits.pause(error)
                continue
            if standing.mark is not None:
                return standing.mark
            await self._waits.pause(NotYetReadable(0, row_id))

    # -- silence -------------------------------------------------------------------------------

    def _forgive_callers_time(self) -> None:
        """Exclude the time that the caller worked on a run from what counts as silence.

        Frames have accumulated meanwhile: the receiver must look at them, not at the database.
        """
        if self._handed_ns is None:
            return
        now = self._clock.monotonic_ns()
        self.watch.forgive(now - self._handed_ns)
        self._last_run_ns = now
        self._handed_ns = None

    def _patience(self) -> float:
        """Return how long to wait for records: not far beyond the end by `idle_seconds`."""
        patience, idle_seconds = self.watch.patience, self._idle_seconds
        if idle_seconds is None:
            return patience
        left = idle_seconds - (self._clock.monotonic_ns() - self._last_run_ns) / SECOND_NS
        return min(patience, left) if left > 0 else patience

    async def _has_ended_idle(self) -> bool:
        """End when nothing was delivered for long enough and the database holds nothing more."""
        idle_seconds = self._idle_seconds
        if idle_seconds is None:
            return False
        idle_ns = self._clock.monotonic_ns() - self._last_run_ns
        if idle_ns < idle_seconds * SECOND_NS:
            return False
        decision = await self.watch.ask("poll")
        self.is_over = isinstance(decision, InStep)
        return self.is_over or self.filling.open_if_behind(decision)
