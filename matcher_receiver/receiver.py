"""The receiver: awaits what the core has decided, and hands runs to whoever iterates.

It pulls. There is no task of our own: while the caller works on a run, or a fill is handed out,
live frames wait in the consumer's bounded fetch buffer, and behind it in Kafka. What falls out
there is read from the database. Only the frame that showed a gap is kept aside, and judged again
when the gap is filled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Self, TypeVar

from matcher_receiver.backoff import Backoff
from matcher_receiver.core import ReceiveCore
from matcher_receiver.decisions import (
    CONFIRM_NONCE,
    DROP_NONCE,
    Check,
    Compare,
    ConfirmNonce,
    Deliver,
    DeliverNewPart,
    Drop,
    Fill,
    Halt,
    InStep,
    State,
    Wait,
)
from matcher_receiver.gaps import Gap, GapLedger
from matcher_receiver.stats import Counters, ReceiverStats
from orderchain.clock import SystemClock
from orderchain.errors import (
    ConnectError,
    FrameError,
    HaltError,
    NotYetReadable,
    RetryError,
    SealMismatch,
    SettingError,
)
from orderchain.frame import decode_header
from orderchain.limits import ID_MAX
from orderchain.run import Run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType
    from typing import Any

    from matcher_receiver.config import ReceiverConfig
    from matcher_receiver.decisions import Cause, FrameDecision, StandingDecision
    from orderchain.clock import Clock
    from orderchain.event import Event
    from orderchain.frame import FrameHeader
    from orderchain.mark import Mark, Standing
    from orderchain.ports import CheckpointStore, FrameSource, GapSource

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_SECOND_NS = 1_000_000_000
# A database that restarts refuses connections: after the start that is no reason to give up.
_AWAY = (RetryError, ConnectError)


class _StopAsked(Exception):
    """`stop` was called while the receiver waited."""


class Receiver:
    """Hands the rows of one chain on in order, each once, none missing.

    `async with` starts and closes it, and what it was given; `async for run in receiver` yields
    linked, committed runs; `await receiver.checkpoint(run)` stores how far the caller has come.

    The iteration ends at `until_id`, when idle, or after `stop`; it can be resumed after a
    cancellation, since nothing is lost by one. `stop` takes effect at once, whatever is awaited;
    leaving the `async with` takes as long as the slowest of the three closes (their deadlines are
    2 to 4 s by default). It raises HaltError when the primary contradicts
    what was delivered (and again at every further call), RowsMissing or RowsArchived when rows
    cannot be read. A broker or a database that is away is waited for.
    """

    def __init__(
        self,
        config: ReceiverConfig,
        frames: FrameSource,
        gap_source: GapSource,
        checkpoints: CheckpointStore | None = None,
        clock: Clock | None = None,
        *,
        on_state: Callable[[State], None] | None = None,
        random: Random | None = None,
    ) -> None:
        self._config = config
        self._frames = frames
        self._gap_source = gap_source
        self._checkpoints = checkpoints
        self._clock = clock or SystemClock()
        self._on_state = on_state
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self._backoff = Backoff(config.retry_seconds_max, self._random)
        self._counters = Counters()
        self.gaps = GapLedger(config.gaps_kept)
        """The last gaps that were filled."""
        self.live = asyncio.Event()
        """Set once the receiver has caught up and reads live frames; never cleared."""
        self.head_at_start = 0
        """The database's head when this receiver started."""

        self._core: ReceiveCore | None = None
        self._told_state: State | None = None
        self._head_seen = 0
        self._until_id = config.until_id
        self._is_over = False
        self._stopping = False
        self._inner: asyncio.Future[Any] | None = None

        self._records: deque[bytes | None] = deque()
        self._slot: tuple[FrameHeader, bytes] | None = None
        self._ready: Run | None = None
        self._fill: AsyncIterator[Run] | None = None
        self._fill_began: tuple[int, int, int] = (0, 0, 0)  # after_id, wall and monotonic time
        self._fill_rows = 0
        self._source_name = "primary"
        self._waited_since_ns: int | None = None

        self._last_use_ns = 0
        self._last_check_ns: int | None = None
        self._last_run_ns = 0
        self._handed_ns: int | None = None
        self._patience = config.poll_after_seconds

        self._delivered: Mark | None = None
        self._saved: Mark | None = None
        self._saved_from = 0
        self._is_saved_by_caller = False

    # -- start and end -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _start(self) -> None:
        # First the live end, then the database: what is committed in between comes by Kafka too.
        # The other way round it would be in neither.
        await self._frames.start()
        start = self._config.start
        if start is None and self._checkpoints is not None:
            start = await self._checkpoints.load()
        is_new = start is None
        standing = await self._gap_source.standing(0 if start is None else start.id)
        if start is None:
            start = standing.mark
            if start is None:
                raise NotYetReadable(0, standing.head.last_id)
        self._core = core = ReceiveCore(self._config.chain_id, start)
        self._delivered = self._saved = start
        self._saved_from = start.id
        self._note_standing(standing)
        self.head_at_start = standing.head.last_id
        if self._config.to_head_at_start:
            self._until_id = min(
                ID_MAX if self._until_id is None else self._until_id, self.head_at_start
            )
        await self._obey_start(core.judge_standing(standing, "start"))
        if is_new and self._checkpoints is not None:
            await self._checkpoints.save(start.id, start)
        now = self._clock.monotonic_ns()
        self._last_use_ns = self._last_run_ns = now
        self._is_over = self._until_id is not None and start.id >= self._until_id

    async def _obey_start(self, decision: StandingDecision) -> None:
        if isinstance(decision, Fill):
            self._open_fill(decision)
        elif isinstance(decision, Halt):
            self._halt(decision.error)
        # Wait: a standby that has not come as far as our checkpoint. It is asked again by and by.
        self._tell_state()

    async def _close(self) -> None:
        self._is_over = True
        await self._drop_fill()
        closing = [self._frames.close(), self._gap_source.close()]
        if self._checkpoints is not None:
            closing.append(self._checkpoints.close())
        await asyncio.gather(*closing)  # each has a deadline of its own

    def stop(self) -> None:
        """End the iteration: at once when it waits, else after the run that is being worked on."""
        self._stopping = True
        if self._inner is not None:
            self._inner.cancel()

    # -- what a caller sees --------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the receiver is doing."""
        return self._running().state

    @property
    def head_delivered(self) -> int:
        """Id of the last row that was handed on; before the first, that of the checkpoint."""
        return 0 if self._delivered is None else self._delivered.id

    def stats(self) -> ReceiverStats:
        """Return the counters as they are now."""
        core, counters = self._running(), self._counters
        return ReceiverStats(
            state=core.state,
            head_delivered=self.head_delivered,
            head_seen=self._head_seen,
            fill_until=core.fill_until,
            records=counters.records,
            heartbeats=counters.heartbeats,
            frames_live=counters.frames_live,
            duplicates_dropped=counters.duplicates_dropped,
            dropped=dict(counters.dropped),
            rows_live=counters.rows_live,
            rows_filled=counters.rows_filled,
            rows_caught_up=counters.rows_caught_up,
            gaps=self.gaps.count,
            reads=counters.reads,
            database_retries=counters.database_retries,
            broker_failures=counters.broker_failures,
        )

    async def checkpoint(self, run: Run, connection: object | None = None) -> None:
        """Store that everything up to the end of `run` has been worked on.

        One call may cover all runs since the last one. With `connection`, the caller's own inside
        its transaction, effect and checkpoint stand or fall together; after a rollback the call is
        made again with the same run. A run that an earlier call has covered is left alone.
        Raises CheckpointLost when another receiver has moved the checkpoint: roll back and stop.
        Raises RetryError when it is not known whether it was stored: call again.
        """
        if self._checkpoints is None or self._saved is None:
            raise SettingError("checkpoints", None, "a store, to keep a checkpoint in")
        if run.last_id > self.head_delivered:
            raise SettingError("run", run.last_id, f"a run up to {self.head_delivered}")
        # Whether the caller's transaction was committed is not ours to see: the same run again
        # means that it was not, and stands where it stood.
        is_repeat = run.last_id == self._saved.id and self._is_saved_by_caller
        if run.last_id <= self._saved.id and not is_repeat:
            return
        first_pid = self._saved_from if is_repeat else self._saved.id
        await self._checkpoints.save(first_pid, run.end, connection)
        self._saved, self._saved_from = run.end, first_pid
        self._is_saved_by_caller = connection is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Run:
        core = self._running()
        if core.halted_by is not None:
            raise core.halted_by
        self._forgive_callers_time()
        try:
            while not (self._is_over or self._stopping):
                run = self._ready or await self._step(core)
                self._tell_state()
                if run is not None and (handed := await self._hand_out(run)) is not None:
                    return handed
        except _StopAsked:
            pass
        except HaltError as error:
            self._halt(error)
        raise StopAsyncIteration

    # -- one step ------------------------------------------------------------------------------

    async def _step(self, core: ReceiveCore) -> Run | None:
        """Do the next thing: go on filling, judge the next frame, or wait for one."""
        if core.is_filling:
            return await self._fill_on(core)
        if self._slot is not None:
            return await self._judge(core, *self._slot)
        if self._records:
            return await self._look_at(core, self._records.popleft())
        await self._receive()
        return None

    async def _hand_out(self, run: Run) -> Run | None:
        # Kept until it is handed on: the head has moved over it, and a cancellation must not lose
        # it.
        self._ready = run
        if self._until_id is not None and run.last_id >= self._until_id:
            cut = await self._cut(run, self._until_id)
            self._is_over = True
            self._ready = None
            if cut is None:
                return None
            run = cut
        self._ready = None
        self._delivered = run.end
        self._handed_ns = self._last_run_ns = self._clock.monotonic_ns()
        return run

    def _forgive_callers_time(self) -> None:
        """Leave the time that the caller worked on a run out of what counts as silence.

        Frames have piled up meanwhile: they are to be looked at, not the database.
        """
        if self._handed_ns is None:
            return
        now = self._clock.monotonic_ns()
        self._last_use_ns += now - self._handed_ns
        self._last_run_ns = now
        self._handed_ns = None

    async def _cut(self, run: Run, until_id: int) -> Run | None:
        """Return the rows of `run` up to `until_id`; None if there are none."""
        events = [event for event in run.events if event.id <= until_id]
        if len(events) == len(run.events):
            return run
        if not events:
            return None
        while True:
            try:
                standing = await self._read_standing(events[-1].id)
            except _AWAY as error:
                await self._pause(error)
                continue
            if standing.mark is not None:
                return Run(chain_id=run.chain_id, events=events, end=standing.mark)
            await self._pause(NotYetReadable(run.first_pid, until_id))

    # -- frames --------------------------------------------------------------------------------

    async def _receive(self) -> None:
        """Wait for records; look at the database when nothing useful has come for long."""
        if await self._has_ended_idle():
            return
        now = self._clock.monotonic_ns()
        if now - self._last_use_ns > self._config.poll_after_seconds * _SECOND_NS:
            # Records may come and yet be of no use: garbage, or the frames of a leader of old.
            await self._poll()
            if self._running().is_filling:
                return
        began_ns = now
        try:
            records = await self._interruptible(self._frames.records(self._patience_now()))
        except RetryError as error:
            self._counters.broker_failures += 1
            _log.warning("chain %d: the broker is away: %s", self._config.chain_id, error)
            self._patience = self._config.outage_poll_seconds
            await self._rest_of(self._patience, began_ns)
            records = []
        if records:
            self._records.extend(records)
        else:
            await self._poll()

    def _patience_now(self) -> float:
        """Return how long to wait for records: not far beyond the end by idleness."""
        if self._config.idle_seconds is None:
            return self._patience
        idle = (self._clock.monotonic_ns() - self._last_run_ns) / _SECOND_NS
        left = self._config.idle_seconds - idle
        return min(self._patience, left) if left > 0 else self._patience

    async def _rest_of(self, seconds: float, began_ns: int) -> None:
        """Wait until `seconds` after `began_ns`: a source that fails at once must not spin."""
        left = seconds - (self._clock.monotonic_ns() - began_ns) / _SECOND_NS
        if left > 0:
            await self._interruptible(asyncio.sleep(left))

    async def _look_at(self, core: ReceiveCore, record: bytes | None) -> Run | None:
        self._counters.records += 1
        try:
            header = decode_header(record)
        except FrameError as error:
            self._counters.drop(error.reason)
            return None
        if header.count == 0:
            self._counters.heartbeats += 1
        return await self._judge(core, header, record or b"")

    async def _judge(self, core: ReceiveCore, header: FrameHeader, record: bytes) -> Run | None:
        decision = core.judge(header)
        if isinstance(decision, Deliver | DeliverNewPart):
            self._slot = None
            return self._deliver(core, decision, header, record)
        # Kept aside until the reading is done: a cancellation in it loses no frame.
        self._slot = (header, record)
        is_settled = await self._settle(core, decision)
        if is_settled:
            self._slot = None
        return None

    def _deliver(
        self, core: ReceiveCore, decision: FrameDecision, header: FrameHeader, record: bytes
    ) -> Run | None:
        deliver = core.deliver if isinstance(decision, Deliver) else core.deliver_new_part
        try:
            run = deliver(header, record)
        except FrameError as error:
            self._counters.drop(error.reason)
            return None
        if isinstance(run, Check):
            # The frame is gone, the gap that it leaves will show: by the next one, or a poll.
            self._counters.drop(run.reason)
            return None
        self._note_use()
        self._counters.frames_live += 1
        self._counters.rows_live += len(run.events)
        return run

    async def _settle(self, core: ReceiveCore, decision: FrameDecision) -> bool:
        """Do what `decision` asks for; say whether the frame is done with."""
        match decision:
            case Drop(reason):
                self._counters.drop(reason)
            case InStep():
                self._note_use()
            case Check(reason):
                self._counters.drop(reason)
                self._open_if_behind(await self._check())
            case ConfirmNonce():
                return not await self._confirm_nonce(core)
            case Fill():
                return await self._confirm_gap(core, decision)
        return True

    async def _confirm_nonce(self, core: ReceiveCore) -> bool:
        """Ask the database who leads; say whether the frame in the slot is to be judged again.

        If the database is ahead of us, that is most often by this very frame: no fill is opened.
        """
        await self._check()
        slot = self._slot
        if slot is None or core.judge(slot[0]) is CONFIRM_NONCE:
            self._counters.drop(DROP_NONCE.reason)
            return False
        return True

    async def _confirm_gap(self, core: ReceiveCore, fill: Fill) -> bool:
        """Ask the database for the row that a frame tells of, and open the fill.

        Returns whether the frame is done with: a heartbeat is, a phantom is, a frame that is to be
        judged again behind the fill is not.
        """
        try:
            standing = await self._read_standing(fill.until_id)
        except _AWAY as error:
            await self._pause(error)
            return False
        decision = core.judge_gap(standing, fill)
        if isinstance(decision, Halt):
            raise decision.error
        if isinstance(decision, Wait):
            return await self._wait_for_standby(fill.until_id)
        self._waited_since_ns = None
        self._backoff.reset()
        if isinstance(decision, Drop):
            self._counters.drop(decision.reason)
            return True
        self._note_use()
        self._open_fill(decision)
        return decision.cause == "heartbeat"

    async def _wait_for_standby(self, until_id: int) -> bool:
        """Wait for a standby to get a row; after the deadline let go of the frame."""
        error = NotYetReadable(self._running().head.id, until_id)
        if self._has_waited_enough():
            self._counters.drop("unreadable")
            return True
        await self._pause(error)
        return False

    def _has_waited_enough(self) -> bool:
        now = self._clock.monotonic_ns()
        if self._waited_since_ns is None:
            self._waited_since_ns = now
        if now - self._waited_since_ns < self._config.standby_wait_seconds * _SECOND_NS:
            return False
        self._waited_since_ns = None
        return True

    def _note_use(self) -> None:
        """A frame was of use: Kafka brings what it should."""
        self._last_use_ns = self._clock.monotonic_ns()
        self._patience = self._config.poll_after_seconds

    # -- the database's head -------------------------------------------------------------------

    async def _poll(self) -> None:
        """Look at the database's head, since Kafka says nothing."""
        self._last_use_ns = self._clock.monotonic_ns()
        if self._open_if_behind(await self._ask_standing("poll")):
            # Kafka should have brought these rows and did not: ask more often.
            self._patience = self._config.outage_poll_seconds

    def _open_if_behind(self, decision: StandingDecision | None) -> bool:
        """Open a fill if the database has more than we have delivered, and say so."""
        if not isinstance(decision, Fill):
            return False
        self._open_fill(decision)
        return True

    async def _check(self) -> StandingDecision | None:
        """Look at the database's head for a frame's sake: not more often than is good."""
        now = self._clock.monotonic_ns()
        last = self._last_check_ns
        if last is not None and now - last < self._config.check_seconds * _SECOND_NS:
            return None
        self._last_check_ns = now
        return await self._ask_standing("frame")

    async def _ask_standing(self, cause: Cause) -> StandingDecision | None:
        """Read the standing of our own head; halt or compare if it asks for that.

        Returns None when the database is away. That is not waited for: live frames of known
        publishers go on.
        """
        core = self._running()
        try:
            standing = await self._read_standing(core.head.id)
        except _AWAY as error:
            self._counters.database_retries += 1
            _log.warning("chain %d: the database is away: %s", self._config.chain_id, error)
            return None
        decision = core.judge_standing(standing, cause)
        if isinstance(decision, Halt):
            raise decision.error
        if isinstance(decision, Compare):
            await self._compare(core)
        return decision

    async def _read_standing(self, at_id: int) -> Standing:
        self._counters.reads += 1
        standing = await self._interruptible(self._gap_source.standing(at_id))
        self._note_standing(standing)
        return standing

    def _note_standing(self, standing: Standing) -> None:
        self._source_name = "primary" if standing.is_primary else "standby"
        self._head_seen = max(self._head_seen, standing.head.last_id)

    async def _has_ended_idle(self) -> bool:
        """End when nothing was delivered for long enough and the database holds nothing more."""
        if self._config.idle_seconds is None:
            return False
        idle_ns = self._clock.monotonic_ns() - self._last_run_ns
        if idle_ns < self._config.idle_seconds * _SECOND_NS:
            return False
        decision = await self._ask_standing("poll")
        self._is_over = isinstance(decision, InStep)
        return self._is_over or self._open_if_behind(decision)

    # -- fills ---------------------------------------------------------------------------------

    def _open_fill(self, fill: Fill) -> None:
        core = self._running()
        core.open_fill(fill)
        self._fill_began = (core.head.id, self._clock.wall_ns(), self._clock.monotonic_ns())
        self._fill_rows = 0
        self._tell_state()

    async def _fill_on(self, core: ReceiveCore) -> Run | None:
        """Return the next run of the open fill; None when it has to be tried again."""
        if self._fill is None:
            self._fill = self._gap_source.runs(core.head, core.fill_until)
        try:
            run = await self._interruptible(_next(self._fill))
        except SealMismatch:
            await self._drop_fill()
            await self._compare(core)
            return None
        except NotYetReadable as error:
            await self._drop_fill()
            if self._has_waited_enough():
                raise
            await self._pause(error)
            return None
        except _AWAY as error:
            await self._drop_fill()
            await self._pause(error)
            return None
        except BaseException:
            await self._drop_fill()
            raise
        return await self._take_filled(core, run)

    async def _take_filled(self, core: ReceiveCore, run: Run | None) -> Run | None:
        if run is None:
            # The source ended before the range did, which its port forbids. Ask it again.
            await self._drop_fill()
            await self._pause(NotYetReadable(core.head.id, core.fill_until))
            return None
        accepted = core.accept_filled(run)
        if isinstance(accepted, Halt):
            raise accepted.error
        self._backoff.reset()
        self._waited_since_ns = None
        self._fill_rows += len(run.events)
        if core.fill_cause == "start":
            self._counters.rows_caught_up += len(run.events)
        else:
            self._counters.rows_filled += len(run.events)
        if not core.is_filling:
            await self._end_fill(core)
        return accepted

    async def _end_fill(self, core: ReceiveCore) -> None:
        await self._drop_fill()
        self._last_use_ns = self._clock.monotonic_ns()
        if core.fill_cause == "start":
            return
        after_id, wall_ns, began_ns = self._fill_began
        self.gaps.add(
            Gap(
                chain_id=core.chain_id,
                after_id=after_id,
                until_id=core.head.id,
                cause=core.fill_cause,
                source=self._source_name,
                rows=self._fill_rows,
                found_at_ns=wall_ns,
                duration_ns=self._clock.monotonic_ns() - began_ns,
            )
        )

    async def _drop_fill(self) -> None:
        fill, self._fill = self._fill, None
        if fill is not None:
            await _end(fill)

    async def _compare(self, core: ReceiveCore) -> None:
        """Read the last batch again: only rows that differ halt, not a seal alone."""
        rows: list[Event] = []
        end = core.head
        runs = self._gap_source.runs(core.proven, core.head.id)
        try:
            while (run := await self._interruptible(_next(runs))) is not None:
                rows += run.events
                end = run.end
        except _AWAY as error:
            await self._pause(error)
            return
        finally:
            await _end(runs)
        decision = core.compare(rows, end)
        if isinstance(decision, Halt):
            raise decision.error

    # -- small things --------------------------------------------------------------------------

    async def _pause(self, error: Exception) -> None:
        """Wait a little before the next try."""
        self._counters.database_retries += 1
        seconds = self._backoff.next_seconds()
        _log.warning("chain %d: again in %.2f s: %s", self._config.chain_id, seconds, error)
        await self._interruptible(asyncio.sleep(seconds))

    async def _interruptible(self, awaitable: Awaitable[_T]) -> _T:
        """Await `awaitable`, which `stop` may end."""
        if self._stopping:
            _discard(awaitable)
            raise _StopAsked
        self._inner = inner = asyncio.ensure_future(awaitable)
        try:
            return await inner
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # Ours to swallow only when nobody cancelled the task that iterates.
            if self._stopping and (task is None or not task.cancelling()):
                raise _StopAsked from None
            raise
        finally:
            self._inner = None

    def _running(self) -> ReceiveCore:
        if self._core is None:
            raise SettingError("receiver", "not started", "async with Receiver(...)")
        return self._core

    def _halt(self, error: HaltError) -> None:
        self._running().halt(error)
        self._tell_state()
        _log.error("chain %d: halted: %s", self._config.chain_id, error)
        raise error

    def _tell_state(self) -> None:
        state = self._running().state
        if state is self._told_state:
            return
        self._told_state = state
        _log.info("chain %d: %s at %d", self._config.chain_id, state.value, self.head_delivered)
        if state is State.LIVE:
            self.live.set()
        if self._on_state is not None:
            self._on_state(state)


async def _next(runs: AsyncIterator[Run]) -> Run | None:
    return await anext(runs, None)


async def _end(runs: AsyncIterator[Run]) -> None:
    """Let go of what a source holds for `runs`, where it is a generator."""
    close: Callable[[], Awaitable[None]] | None = getattr(runs, "aclose", None)
    if close is not None:
        await close()


def _discard(awaitable: Awaitable[Any]) -> None:
    close: Callable[[], None] | None = getattr(awaitable, "close", None)
    if close is not None:
        close()
