"""The receiving itself, from one start on: one step after the other, run by run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from matcher_receiver.decisions import Fill, Halt, InStep
from matcher_receiver.filling import Filling
from matcher_receiver.inbox import Inbox
from matcher_receiver.kit import AWAY
from matcher_receiver.waits import SECOND_NS
from matcher_receiver.watch import HeadWatch
from orderchain.errors import NotYetReadable
from orderchain.run import Run

if TYPE_CHECKING:
    from matcher_receiver.decisions import State
    from matcher_receiver.kit import Kit
    from orderchain.mark import Mark, Standing


class Reception:
    """Where rows come from next, and when that is over.

    It pulls: nothing is read before somebody asks for the next run. Frames that are at hand are
    worked off by the caller himself. Whatever has to be waited for is work of its own
    (`Waits.outcome`), which a caller who gives up does not break off: a cancellation reaches no
    line that moves the head, nor any between that and the hand-out.
    """

    def __init__(self, kit: Kit, until_id: int | None) -> None:
        self._kit = kit
        self._until_id = until_id
        self.watch = HeadWatch(kit)
        self.filling = Filling(kit, self.watch)
        self._inbox = Inbox(kit, self.watch, self.filling)
        self._uncut: Run | None = None
        self._is_last = False
        self._last_run_ns = kit.clock.monotonic_ns()
        self._handed_ns: int | None = None
        self.is_over = until_id is not None and kit.core.head.id >= until_id
        """Whether the end that was set is reached; never taken back."""

    @property
    def state(self) -> State:
        """What is being done."""
        return self._kit.core.state

    def begin(self, standing: Standing) -> None:
        """Take the first reading of our own place. Raises HaltError."""
        self.watch.note(standing)
        decision = self._kit.core.judge_standing(standing, "start")
        if isinstance(decision, Fill):
            self.filling.open(decision)
        elif isinstance(decision, Halt):
            raise decision.error
        # Wait: a standby that has not come as far as our checkpoint. It is asked again by and by.

    async def step(self) -> Run | None:
        """Do the next thing: fill on, judge a frame, or wait for one.

        Returns a run that is to be handed on, None when there is none yet. Raises HaltError,
        GapError, NotYetReadable, StopAsked.
        """
        self._forgive_callers_time()
        if self._has_frame and not self._kit.waits.is_busy:
            # Nothing here waits while frames are at hand, and a caller that works in memory never
            # does. So give way once a frame: the next fetch is asked for and read while these are
            # worked on (a fifth to two fifths more rows a second), and no chain holds up the others
            # of a process. Nothing has been taken yet that a cancellation could lose.
            await asyncio.sleep(0)
            run = self._next_frame()
        else:
            run = await self._kit.waits.outcome(self._work)
        return None if run is None else self._hand_out(run)

    @property
    def _has_frame(self) -> bool:
        """Whether a frame can be judged now, without waiting for anything."""
        return not (
            self._inbox.is_empty
            or self._inbox.has_question
            or self.watch.is_contradicted
            or self.filling.is_open
            or self._uncut is not None
        )

    def _next_frame(self) -> Run | None:
        run = self._inbox.next()
        if run is None:
            return None
        self._kit.counters.source = "kafka"
        if self._reaches_end(run):
            self._uncut = run
            return None
        return run

    async def _work(self) -> Run | None:
        """Do what has to be waited for; return a run that is ready to be handed on."""
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
        if self.filling.is_open:
            run = await self.filling.next()
            if run is not None:
                self._kit.counters.source = run.source or self.watch.source_name
            return run
        if self.watch.is_contradicted:
            await self.watch.answer_denial()
        elif self._inbox.has_question:
            await self._inbox.settle()
        else:
            await self._receive()
        return None

    async def _receive(self) -> None:
        if await self._has_ended_idle():
            return
        if self.watch.is_due:
            # Records may come and yet be of no use: garbage, or the frames of a leader of old.
            await self._inbox.poll()
            if self.filling.is_open:
                return
        await self._inbox.receive(self._patience())

    async def close(self) -> None:
        """End, and let go of what is open."""
        self.is_over = True
        await self._kit.waits.close()
        await self.watch.close()
        await self.filling.close()

    # -- handing out ---------------------------------------------------------------------------

    def _hand_out(self, run: Run) -> Run:
        self.is_over = self.is_over or self._is_last
        self._handed_ns = self._last_run_ns = self._kit.clock.monotonic_ns()
        self.watch.lag.deliver(run.last_id)
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
        """Return the mark behind a row that was read, however long that takes."""
        while True:
            try:
                standing = await self.watch.read(row_id)
            except AWAY as error:
                await self._kit.waits.pause(error)
                continue
            if standing.mark is not None:
                return standing.mark
            await self._kit.waits.pause(NotYetReadable(0, row_id))

    # -- silence -------------------------------------------------------------------------------

    def _forgive_callers_time(self) -> None:
        """Leave the time that the caller worked on a run out of what counts as silence.

        Frames have piled up meanwhile: they are to be looked at, not the database.
        """
        if self._handed_ns is None:
            return
        now = self._kit.clock.monotonic_ns()
        self.watch.forgive(now - self._handed_ns)
        self._last_run_ns = now
        self._handed_ns = None

    def _patience(self) -> float:
        """Return how long to wait for records: not far beyond the end by idleness."""
        patience, idle_seconds = self.watch.patience, self._kit.config.idle_seconds
        if idle_seconds is None:
            return patience
        left = idle_seconds - (self._kit.clock.monotonic_ns() - self._last_run_ns) / SECOND_NS
        return min(patience, left) if left > 0 else patience

    async def _has_ended_idle(self) -> bool:
        """End when nothing was delivered for long enough and the database holds nothing more."""
        idle_seconds = self._kit.config.idle_seconds
        if idle_seconds is None:
            return False
        idle_ns = self._kit.clock.monotonic_ns() - self._last_run_ns
        if idle_ns < idle_seconds * SECOND_NS:
            return False
        decision = await self.watch.ask("poll")
        self.is_over = isinstance(decision, InStep)
        return self.is_over or self.filling.open_if_behind(decision)
