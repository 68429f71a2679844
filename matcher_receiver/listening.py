"""The receive loop: frames from Kafka, and when to read the database instead.

While the caller works on a run, or a fill is delivered, live frames wait in the
consumer's bounded fetch buffer, and then in Kafka. What is lost there is read from the database.
The broker need not be there: its start is retried for as long as it takes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from chain_kernel.clock import Backoff
from chain_kernel.errors import (
    ConnectError,
    FrameError,
    NotYetReadable,
    OrderchainError,
    RetryError,
    TopicError,
)
from chain_kernel.frame import decode_header
from chain_kernel.limits import FRAME_BYTES_MAX
from chain_kernel.model import Run
from chain_kernel.text import SummedLog, reason_of
from matcher_receiver.cancellable_wait import AWAY, SECOND_NS, Patience
from matcher_receiver.decisions import (
    CONFIRM_NONCE,
    DROP_NONCE,
    DROP_SUSPECT,
    Check,
    ConfirmNonce,
    Deliver,
    DeliverNewPart,
    Drop,
    Fill,
    Halt,
    InStep,
    Wait,
)
from matcher_receiver.reading import CONFIRM_SECONDS, HeadWatch, OpenFill

if TYPE_CHECKING:
    from random import Random

    from chain_kernel.frame import FrameHeader
    from chain_kernel.model import ChainPosition, Mark
    from chain_kernel.ports import FrameSource
    from matcher_receiver.decisions import FrameDecision, State
    from matcher_receiver.reading import ReceiverParts


_log = logging.getLogger(__name__)

_PAUSE_SECONDS_MAX: Final = 1.0
"""Pause between two tries to start. Rows come from the database meanwhile: there is no hurry."""

_STARTS_MAX: Final = 4
"""Clients of one event loop that start at the same time. They share its processor: of hundreds that
start at once each would take as long as all, and none would be ready within its deadline."""

UNKNOWN_MAX: Final = 256
UNKNOWN_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX
"""Frames of unknown terms that wait for the database: anyone who may write can send them."""

_starts: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)


class OptionalFrames:
    """A `FrameSource` that is away until the one that it wraps has been started.

    A topic that is missing, or unfit, is one that is away: the database has every row.

    If it is started late, it is at the live end of that moment. What was published before is in the
    database, where the receiver looks while it has no frames, and after that the pids show a gap.
    """

    def __init__(
        self,
        frames: FrameSource,
        start_seconds: float,
        random: Random | None = None,
        *,
        is_broker_required: bool = False,
    ) -> None:
        self._frames = frames
        self._is_broker_required = is_broker_required
        self._start_seconds = start_seconds
        self._backoff = Backoff(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS_MAX, random=random)
        self._starting: asyncio.Task[None] | None = None
        self._why_away = "the source of frames has not answered yet"

    @property
    def place(self) -> tuple[str, int] | None:
        """Topic and partition."""
        return self._frames.place

    @property
    def has_rows(self) -> bool:
        """True if frames bring rows."""
        return self._frames.has_rows

    async def start(self) -> None:
        """Go to the live end if the broker answers soon.

        If it is required, it must be there, with any topic. Raises ConnectError then. One that is
        there and too slow, such as for hundreds of receivers that start at once, is waited for
        like one that is away.
        """
        if self._is_broker_required:
            with suppress(TopicError, RetryError):
                await self._start_in_turn()
                return
        self._starting = asyncio.create_task(self._start(), name="orderchain broker start")
        await self._wait(self._starting, self._start_seconds)

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the next records."""
        starting = self._starting
        if starting is not None and not await self._wait(starting, timeout_seconds):
            raise RetryError(self._why_away)
        self._starting = None
        return await self._frames.records(timeout_seconds)

    async def close(self) -> None:
        """Close."""
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            with suppress(asyncio.CancelledError, OrderchainError):
                await starting
        await self._frames.close()

    async def _start(self) -> None:
        while True:
            try:
                await self._start_in_turn()
            except (ConnectError, RetryError, TopicError) as error:
                if (why := reason_of(error)) != self._why_away:
                    level = logging.ERROR if isinstance(error, TopicError) else logging.WARNING
                    _log.log(level, "%s; rows come from the database until it is there", why)
                self._why_away = why
                await asyncio.sleep(self._backoff.next_seconds())
            else:
                return

    async def _start_in_turn(self) -> None:
        """Start when fewer than `_STARTS_MAX` others do; the deadline counts from then."""
        loop = asyncio.get_running_loop()
        async with _starts.setdefault(loop, asyncio.Semaphore(_STARTS_MAX)):
            await self._frames.start()

    @staticmethod
    async def _wait(starting: asyncio.Task[None], seconds: float) -> bool:
        """Wait up to `seconds` for the start; return whether it is done. Raises what ended it."""
        await asyncio.wait([starting], timeout=seconds)
        if not starting.done():
            return False
        starting.result()
        return True


class LiveFrames:
    """The frames of one chain, in the order in which they came."""

    def __init__(self, parts: ReceiverParts, watch: HeadWatch, filling: OpenFill) -> None:
        self._core = parts.core
        self._frames = parts.frames
        self._watch = watch
        self._filling = filling
        self._waits = parts.waits
        self._counters = parts.counters
        self._clock = parts.clock
        self._tracing = parts.tracing
        self._records: deque[bytes | None] = deque()
        self._aside: tuple[FrameHeader, bytes] | None = None
        # Frames of unknown terms: those that the database is asked about, and those since then.
        self._asked: deque[tuple[FrameHeader, bytes]] = deque()
        self._unasked: deque[tuple[FrameHeader, bytes]] = deque()
        self._unknown_bytes = 0
        self._question: FrameDecision | None = None
        self._patience = Patience(parts.tuning.standby_wait_seconds, parts.clock)
        self._outage = SummedLog(_log, logging.WARNING)
        self._is_away = False

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to look at: call `receive` first."""
        return self._aside is None and not self._records and not self._is_answered

    @property
    def has_unknown(self) -> bool:
        """True if frames of unknown terms wait for what the database says about them."""
        return bool(self._asked or self._unasked)

    @property
    def _is_answered(self) -> bool:
        """True if those can be judged, or asked about."""
        return self.has_unknown and not self._watch.is_asking

    @property
    def has_question(self) -> bool:
        """True if the database must be asked about the frame aside: call `settle` first."""
        return self._question is not None

    async def receive(self, patience_seconds: float) -> None:
        """Wait for records; look at the database when none came."""
        began_ns = self._clock.monotonic_ns()
        try:
            records = await self._frames.records(patience_seconds)
        except RetryError as error:
            self._counters.broker_failures += 1
            self._outage.repeat(f"chain {self._core.chain_id}: no frames: {error}")
            self._watch.note_outage()
            # A source that fails at once must not spin.
            left = self._watch.patience - (self._clock.monotonic_ns() - began_ns) / SECOND_NS
            if left > 0:
                await self._waits.sleep(left)
            records, self._is_away = [], True
        if records:
            if self._is_away:
                self._outage.log()
                self._is_away = False
            self._records.extend(records)
        elif not self.has_unknown:  # it is asked already
            await self.poll()

    async def poll(self) -> None:
        """Look at the database's head, since Kafka brings nothing useful."""
        if self._filling.open_if_behind(await self._watch.poll()):
            # Kafka should have brought these rows and did not.
            self._watch.note_outage()

    # -- one frame -----------------------------------------------------------------------------

    def next(self) -> Run | None:
        """Look at the next frame; return its rows if they are the next ones. Raises HaltError."""
        if self._aside is not None:
            return self._judge(*self._aside)
        return self._next_unknown() if self._is_answered else self._look_at(self._records.popleft())

    def _next_unknown(self) -> Run | None:
        """Judge the next frame whose term was unknown, or ask about those that came since."""
        frames = self._asked or self._unasked
        header, record = frames[0]
        is_unknown = self._core.admit(header, record) is CONFIRM_NONCE
        if is_unknown and frames is self._unasked:
            self._question = CONFIRM_NONCE
            return None
        frames.popleft()
        self._unknown_bytes -= len(record)
        if not is_unknown:
            return self._judge(header, record)
        self._counters.drop(DROP_NONCE.reason)
        return None

    def _look_at(self, record: bytes | None) -> Run | None:
        counters = self._counters
        counters.records += 1
        try:
            header = decode_header(record)
        except FrameError as error:
            counters.drop(error.reason)
            return None
        if header.count == 0:
            counters.heartbeats += 1
        return self._judge(header, record or b"")

    def _judge(self, header: FrameHeader, record: bytes) -> Run | None:
        core = self._core
        decision = core.admit(header, record) or core.judge(header)
        self._aside = None
        match decision:
            case Deliver() | DeliverNewPart():
                return self._deliver(decision, header, record)
            case Drop(reason):
                self._counters.drop(reason)
            case ConfirmNonce():
                self._keep_unknown(header, record)
            case InStep():
                self._watch.note_step()
            case Fill() if self._watch.is_wary:
                # A phantom has just been found. The next ones are not checked for a while, no
                # matter who sent them: a faulty leader must not cause a flood of reads, and what is
                # dropped wrongly shows again, at the latest by a poll.
                self._counters.drop(DROP_SUSPECT.reason)
            case Fill() if not self._frames.has_rows:
                # A leader whose term the primary has confirmed says so: the fill finds out by
                # itself if it is wrong, and the question would be one more trip per commit.
                self._watch.note_use()
                self._watch.lag.suspect(decision.until_id)  # until it is delivered
                self._filling.open(Fill(decision.until_id, "notice"))
            case _:
                self._aside, self._question = (header, record), decision
                if isinstance(decision, Fill):
                    self._filling.see(decision)
        return None

    def _keep_unknown(self, header: FrameHeader, record: bytes) -> None:
        """Keep a frame until the database has said who leads; one too many is dropped."""
        count, size = len(self._asked) + len(self._unasked), self._unknown_bytes + len(record)
        if count >= UNKNOWN_MAX or size > UNKNOWN_BYTES_MAX:
            self._counters.drop(DROP_NONCE.reason)
            return
        self._unasked.append((header, record))
        self._unknown_bytes += len(record)

    def _deliver(self, decision: FrameDecision, header: FrameHeader, record: bytes) -> Run | None:
        core, counters, tracing = self._core, self._counters, self._tracing
        began_ns = 0 if tracing is None else self._clock.wall_ns()
        deliver = core.deliver if isinstance(decision, Deliver) else core.deliver_new_part
        try:
            run = deliver(header, record)
        except FrameError as error:
            counters.drop(error.reason)
            return None
        if isinstance(run, Check):
            # The frame is dropped. The gap that it leaves will show by the next one, or by a poll.
            counters.drop(run.reason)
            return None
        self._watch.note_use()
        counters.frames_live += 1
        counters.rows_live += len(run.events)
        if tracing is not None:
            tracing.delivered(run, header.epoch, record, began_ns, self._clock.wall_ns())
        return run

    # -- a frame that needs a reading ----------------------------------------------------------

    async def settle(self) -> None:
        """Ask the database about the frame aside. Raises HaltError, RowsArchived."""
        is_done = True
        match self._question:
            case Check(reason):
                self._filling.open_if_behind(await self._watch.check())
                self._counters.drop(reason)
            case ConfirmNonce():
                # If the database is ahead of us, it is usually by these very frames: no fill is
                # opened.
                self._asked, self._unasked = self._unasked, self._asked
                await self._watch.confirm()
            case Fill() as fill:
                is_done = await self._confirm_gap(fill)
        self._question = None
        if is_done:
            self._aside = None

    async def _confirm_gap(self, fill: Fill) -> bool:
        """Ask the database for the row that a frame reports, and open the fill.

        Returns whether the frame is done: a heartbeat is, a phantom is, a frame that must be judged
        again after the fill is not.
        """
        try:
            standing = await self._watch.read(fill.until_id)
        except AWAY as error:
            await self._waits.pause(error)
            return False
        decision = self._core.judge_gap(standing, fill)
        if isinstance(decision, Halt):
            raise decision.error
        if isinstance(decision, Wait):
            return await self._wait_for_standby(fill.until_id)
        self._patience.reset()
        self._waits.succeeded()
        if isinstance(decision, Drop):
            self._filling.deny()
            self._counters.drop(decision.reason)
            self._watch.note_phantom()
            return True
        self._watch.note_use()
        self._filling.open(decision)
        return decision.cause == "heartbeat"

    async def _wait_for_standby(self, until_id: int) -> bool:
        """Wait for a standby to get a row; after the deadline drop the frame."""
        error = NotYetReadable(self._core.head.id, until_id)
        if self._patience.is_over():
            self._filling.deny()
            self._counters.drop("unreadable")
            return True
        await self._waits.pause(error)
        return False


class ReceiveLoop:
    """Decides where rows come from next, and when that is over.

    It pulls: nothing is read before the caller asks for the next run. The caller's own task
    processes frames that are at hand. Whatever has to be waited for is work of its own
    (`CancellableWait.outcome`), which a cancelled caller does not interrupt: a cancellation reaches
    no line that moves the head, nor any between that and the delivery.
    """

    def __init__(
        self,
        parts: ReceiverParts,
        *,
        until_id: int | None,
        idle_seconds: float | None,
        is_until_head: bool = False,
    ) -> None:
        self._core = core = parts.core
        self._waits = parts.waits
        self._counters = parts.counters
        self._clock = clock = parts.clock
        self._idle_seconds = idle_seconds
        self._until_id = until_id
        self._is_until_head = is_until_head
        self.watch = HeadWatch(parts)
        self.filling = OpenFill(parts, self.watch)
        self._live = LiveFrames(parts, self.watch, self.filling)
        self._uncut: Run | None = None
        self._is_last = False
        self._last_run_ns = clock.monotonic_ns()
        self._handed_ns: int | None = None
        self.is_over = until_id is not None and core.head.id >= until_id
        """True if the end that was set is reached; never reset."""

    @property
    def state(self) -> State:
        """The state of the receiver."""
        return self._core.state

    def begin(self, standing: ChainPosition) -> None:
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
        if run is not None:
            self.is_over = self.is_over or self._is_last
            self._handed_ns = self._last_run_ns = self._clock.monotonic_ns()
        return run

    @property
    def _has_frame(self) -> bool:
        """True if a frame can be judged now, without waiting for anything."""
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
            elif self._is_until_head and self.filling.head_after_loss is not None:
                # The head up to which this reads is lost, and no later order may ever come.
                self._until_id = min(self._until_id or 0, self.filling.head_after_loss)
                self.is_over = self._core.head.id >= self._until_id
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

    async def close(self) -> BaseException | None:
        """End, and release what is open. Returns the error that no caller has fetched."""
        self.is_over = True
        found = await self._waits.close()
        await self.watch.close()
        await self.filling.close()
        return found

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
        """Return the mark after a row that was read, however long that takes. Raises HaltError."""
        while True:
            try:
                standing = await self.watch.read(row_id)
            except AWAY as error:
                await self._waits.pause(error)
                continue
            if standing.mark is not None:
                return standing.mark
            await self.watch.ask("poll")  # a primary that has lost the row halts us
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
        if self._live.has_unknown:  # so look again soon
            patience = min(patience, CONFIRM_SECONDS)
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
