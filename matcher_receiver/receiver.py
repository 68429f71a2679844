"""The receiver: delivers one chain in order, each order once, none missing."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Self, TypeVar

from chain_kernel.clock import Backoff, SystemClock
from chain_kernel.errors import (
    HALT_RUNBOOK,
    HaltError,
    NotYetReadable,
    RowsArchived,
    SettingError,
    StoppedError,
)
from chain_kernel.handlers import check_handler, result_of
from chain_kernel.monitoring import LAG_LIMITS
from chain_kernel.tasks import HomeLoop, uninterrupted
from chain_kernel.text import reason_in_chain
from chain_kernel.tracing import find_tracing
from matcher_receiver.cancellable_wait import AWAY, CancellableWait, StopAsked
from matcher_receiver.checkpoint import CheckpointProgress, store_halt
from matcher_receiver.core import ReceiveCore
from matcher_receiver.decisions import State
from matcher_receiver.listening import OptionalFrames, ReceiveLoop
from matcher_receiver.reading import ReceiverParts
from matcher_receiver.shadow import Shadow
from matcher_receiver.stats import METRICS, GapLedger, ReceiverCounters, ReceiverStats, archived_gap

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from random import Random
    from types import TracebackType

    from chain_kernel.clock import Clock
    from chain_kernel.model import ChainHead, ChainPosition, Mark, Run, Snapshot
    from chain_kernel.monitoring import LagLimits, Sample
    from chain_kernel.ports import (
        CheckpointStore,
        FrameSource,
        GapSource,
        ShadowStore,
        SnapshotStore,
    )
    from chain_kernel.start_at import StartAt
    from matcher_receiver.config import ReceiverConfig


def check_parts(
    config: ReceiverConfig,
    gap_source: GapSource,
    checkpoints: CheckpointStore | None,
    snapshots: SnapshotStore | None,
) -> None:
    """Refuse parts of another chain or name, before any of them is used. Raises SettingError.

    Rows of another chain would be delivered as this one's, and under another receiver's name its
    place would be taken for ours: what it has processed would be skipped.
    """
    of_a_chain = {
        "gap source": gap_source,
        "checkpoints": checkpoints,
        "snapshots": snapshots,
    }
    for what, part in of_a_chain.items():
        if part is not None and part.chain_id != config.chain_id:
            raise SettingError(f"chain of the {what}", part.chain_id, f"chain {config.chain_id}")
    if checkpoints is not None and config.name not in (None, checkpoints.receiver):
        expected = f"{config.name!r}, the receiver's name"
        raise SettingError("receiver of the checkpoints", checkpoints.receiver, expected)


def check_chain(config: ReceiverConfig, head: ChainHead, frames: FrameSource) -> None:
    """Refuse a database that reports another chain, and frames of another topic.

    Raises SettingError.
    """
    if head.chain_id != config.chain_id:
        raise SettingError("gap source's chain", head.chain_id, f"chain {config.chain_id}")
    if frames.place not in (None, (head.topic, head.partition)):
        expected = f"{(head.topic, head.partition)}, those of chain {config.chain_id}"
        raise SettingError("topic and partition", frames.place, expected)


class Start(NamedTuple):
    """A place to begin at, and what the database says about it."""

    mark: Mark
    standing: ChainPosition


async def find_start(source: GapSource, own: Mark | None, start_at: StartAt) -> Start:
    """Return the place `own`, or without one the place that `start_at` names.

    Raises as `ports.GapSource.standing`.
    """
    if own is not None:
        return Start(own, await source.standing(own.id, own.batch_last_id))
    standing = await source.standing(await _row_of(source, start_at))
    if standing.mark is None:
        raise NotYetReadable(0, standing.head.last_id)
    return Start(standing.mark, standing)


async def _row_of(source: GapSource, start_at: StartAt) -> int:
    if start_at.at is not None:
        return 0 if start_at.at == "beginning" else (await source.standing(0)).head.last_id
    if start_at.after_id is not None:
        return await source.row_at_or_before(start_at.after_id)
    return await source.row_before_time(start_at.time_us or 0)


_log = logging.getLogger(__name__)
_T = TypeVar("_T")

FIRST_RETRY_SECONDS: Final = 0.05
"""The first pause after a read that failed: a connection that broke is usually back at once."""


_HALT_SECONDS: Final = 5.0
"""Time that a close tries to store a halt that is not stored yet: about as long as a close
takes."""


def stats_of(
    core: ReceiveCore,
    receive_loop: ReceiveLoop,
    counters: ReceiverCounters,
    *,
    name: str,
    head_delivered: int,
    gaps: GapLedger,
    shadow: Shadow | None,
) -> ReceiverStats:
    """Return the counters as they are now."""
    lag = receive_loop.watch.lag
    return ReceiverStats(
        chain_id=core.chain_id,
        name=name,
        state=core.state,
        head_delivered=head_delivered,
        head_seen=lag.head_seen,
        lag_ids=lag.ids,
        lag_rows=lag.rows,
        lag_seconds=lag.seconds,
        fill_until=core.fill_until,
        open_gap=receive_loop.filling.range,
        gaps=gaps.count,
        gap_durations=gaps.durations.histogram,
        shadow=None if shadow is None else shadow.core.report(),
        **{**vars(counters), "dropped": dict(counters.dropped)},
    )


class Receiver:
    """Delivers the rows of one chain in order, each once, none missing.

    `async with` starts and closes it, and the parts that it was given; `async for run in receiver`
    yields linked, committed runs; `await receiver.checkpoint(run)` stores how far the caller has
    come.

    The iteration ends at `until_id`, when idle, or after `stop`. It can be resumed after a
    cancellation, which loses nothing: what is being read continues, and is delivered at the next
    call. `stop` takes effect at once, whatever is awaited. Leaving the `async with` takes as long
    as the slowest of the closes (their deadlines are 2 to 6 s by default), and is finished even
    when it is cancelled. It waits for a broker or a database that is away.

    Raises:
        SettingError: a part is of another chain or name than `config`; at the start.
        HaltError: the primary contradicts what was delivered; again at every further call.
        RowsMissing: the primary lacks rows.
        RowsArchived: the rows are in the archive alone.
    """

    def __init__(
        self,
        config: ReceiverConfig,
        frames: FrameSource,
        gap_source: GapSource,
        checkpoints: CheckpointStore | None = None,
        clock: Clock | None = None,
        *,
        snapshots: SnapshotStore | None = None,
        on_state: Callable[[State], None] | None = None,
        random: Random | None = None,
        shadow: ShadowStore | None = None,
    ) -> None:
        """Take the parts. With `shadow` it is a shadow, without `checkpoints` of its own.

        Raises:
            SettingError: both are given.
        """
        self._config = config
        if shadow is not None and checkpoints is not None:
            raise SettingError("checkpoints", "given", "none: a shadow keeps no place")
        checkpoints = checkpoints or shadow
        is_required = config.tuning.kafka_at_start == "required"
        self._frames = OptionalFrames(
            frames, config.tuning.poll_after_seconds, random, is_broker_required=is_required
        )
        self._gap_source = gap_source
        self._checkpoints = checkpoints
        self._snapshots = snapshots
        self._clock = clock or SystemClock()
        self._on_state = on_state
        self._counters = ReceiverCounters()
        pause_max = config.tuning.retry_seconds_max
        backoff = Backoff(min(FIRST_RETRY_SECONDS, pause_max), pause_max, random=random)
        self._waits = CancellableWait(config.chain_id, backoff, self._counters)
        self._core: ReceiveCore | None = None
        self._receive_loop: ReceiveLoop | None = None
        self._place: CheckpointProgress | None = None
        self._shadow_store = shadow
        self._shadow: Shadow | None = None
        self._random = random
        self._logged_state: State | None = None
        self._is_halt_stored = checkpoints is None
        self._unhandled: Run | None = None
        self._unsaved: Run | None = None
        record = None if checkpoints is None else checkpoints.record_gap
        self._tracing = find_tracing()
        trace = None if self._tracing is None else self._tracing.filled
        self.gaps = GapLedger(config.tuning.gaps_kept, record, trace)
        """The last gaps, including those that could not be filled."""
        self.snapshot: Snapshot | None = None
        """The newest snapshot, after which this receiver began; None if there is none."""
        self.live = asyncio.Event()
        """Set once the receiver has caught up and reads live frames; never cleared."""
        self.head_at_start = 0
        """The database's head when this receiver started."""
        self._home = HomeLoop("receiver")
        self._is_entered = False

    # -- start and end -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise StoppedError(f"{self._label}: this receiver was entered before")
        self._is_entered = True
        self._home.enter()
        try:
            await self._start()
        except BaseException:
            await uninterrupted(self._close())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._home.check()
        await uninterrupted(self._close())
        self._home.leave()

    async def _start(self) -> None:
        store = self._checkpoints
        check_parts(self._config, self._gap_source, store, self._snapshots)
        # First the live end, then the database: what is committed in between comes from Kafka too.
        # In the opposite order it would be in neither.
        await self._frames.start()
        stored = None if store is None else await store.load()
        if store is not None and not store.keeps_place:
            stored = None  # what was reported says nothing about the caller's state
        own = await self._own_place(stored)
        try:
            start, standing = await find_start(self._gap_source, own, self._config.start_at)
        except RowsArchived as error:
            self.gaps.add(archived_gap(error, error.after_id, "start", self._clock))
            raise
        check_chain(self._config, standing.head, self._frames)
        await self._begin(start, standing, stored)
        if stored is None and store is not None:
            await store.save(start.id, start)

    async def _own_place(self, stored: Mark | None) -> Mark | None:
        """Return the place of the caller's state; None for a state that is empty.

        A service that keeps snapshots and finds none has lost its state, or never had one: its
        checkpoint shows what was processed once, not what the state holds.
        """
        if self._config.start is not None:
            return self._config.start
        if self._snapshots is None:
            return stored
        self.snapshot = await self._snapshots.newest()
        return None if self.snapshot is None else self.snapshot.mark

    async def _begin(self, start: Mark, standing: ChainPosition, stored: Mark | None) -> None:
        self.head_at_start = standing.head.last_id
        database_id = None if self._checkpoints is None else self._checkpoints.database_id
        self._core = core = ReceiveCore(self._config.chain_id, start, database_id)
        self._place = CheckpointProgress(self._checkpoints, start, stored)
        if self._shadow_store is not None:
            shadow = Shadow(self._shadow_store, start, self._waits, self._random)
            await shadow.begin()
            self._shadow = shadow
        parts = ReceiverParts(
            self._config.tuning,
            core,
            self._frames,
            self._gap_source,
            self._waits,
            self.gaps,
            self._counters,
            self._clock,
            self._tracing,
        )
        until = self._config.until
        self._receive_loop = ReceiveLoop(
            parts,
            until_id=self.head_at_start if until == "head" else until,
            idle_seconds=self._config.idle_seconds,
            is_until_head=until == "head",
        )
        try:
            self._receive_loop.begin(standing)
        except HaltError as error:
            await self._halt(core, error)
        self._log_state(core.state)

    async def _close(self) -> None:
        self._end_waits(StoppedError(f"{self._label}: closed"), after_id=0)
        try:
            if self._receive_loop is not None and self._core is not None:
                found = await self._receive_loop.close()
                await self._leave_halt(self._core, found)
        finally:
            parts = (self._frames, self._gap_source, self._checkpoints)
            # Each has a deadline of its own.
            await asyncio.gather(*(part.close() for part in parts if part is not None))

    async def _leave_halt(self, core: ReceiveCore, found: BaseException | None) -> None:
        """Store a halt that no caller has waited for: the next start must know of it.

        The caller left while it was being stored, or before it asked for what was `found`.
        """
        if core.halted_by is None and isinstance(found, HaltError):
            core.halt(found)
            self._log_state(core.state)
        if core.halted_by is None:
            return
        try:
            async with asyncio.timeout(_HALT_SECONDS):
                await self._store_halt(core.halted_by)
        except TimeoutError:
            _log.error("%s: the halt was not stored in %g s", self._label, _HALT_SECONDS)

    def stop(self) -> None:
        """End the iteration: at once when it waits, else after the run that is being worked on.

        From another thread: `loop.call_soon_threadsafe(receiver.stop)`.

        Raises:
            SettingError: called, as every other call, in another event loop or thread than the one
                that opened it.
        """
        self._home.check()
        self._waits.stop()

    # -- what a caller sees --------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the receiver."""
        return self._running(self._core).state

    @property
    def head_delivered(self) -> int:
        """Id of the last row that was delivered; before the first, that of the checkpoint."""
        return 0 if self._place is None else self._place.delivered.id

    def stats(self) -> ReceiverStats:
        """Return the counters as they are now."""
        return stats_of(
            self._running(self._core),
            self._running(self._receive_loop),
            self._counters,
            name=self._name,
            head_delivered=self.head_delivered,
            gaps=self.gaps,
            shadow=self._shadow,
        )

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics at this instant, for a `Monitor`; none before the start."""
        if self._receive_loop is None:
            return
        stats = self.stats()
        labels = {"chain": str(stats.chain_id), "name": stats.name}
        for metric in METRICS:
            yield from metric.samples(stats, labels)

    def why_not_ready(self, limits: LagLimits = LAG_LIMITS) -> str | None:
        """Return in one line why it does not keep up with the chain; None when it does."""
        if self._receive_loop is None:
            return f"{self._label}: not started"
        stats = self.stats()
        if self._core is not None and self._core.halted_by is not None:
            reason = reason_in_chain(self._config.chain_id, self._core.halted_by)
            return f"{self._label}: halted: {reason}"
        if stats.state is State.CATCHING_UP:
            return f"{self._label}: catching up, at {stats.head_delivered} of {stats.head_seen}"
        is_over = self._receive_loop.is_over and not self._is_holding
        if self._waits.is_stopping or is_over:
            return f"{self._label}: ended after id {stats.head_delivered}"
        if limits.are_exceeded(stats.lag_ids, stats.lag_seconds):
            return f"{self._label}: {stats.lag_ids} ids behind for {stats.lag_seconds:.0f} s"
        return None

    async def checkpoint(
        self,
        run: Run,
        connection: object | None = None,
        *,
        states: Callable[[], Mapping[str, bytes]] | None = None,
    ) -> None:
        """Store that everything up to the end of `run` has been processed.

        One call may cover all runs since the last one. After a rollback, call again with the same
        run, or with the first of those that it covered. A store that keeps no place only reports
        it. A run that an earlier call has covered is left alone; with a `connection` it is refused,
        since its effect has been committed before.

        With `states`, digests of the caller's states are stored, too: a replay and a shadow are
        compared with them. A shadow compares its own here, where the other receiver has stored
        some, and is called after each run.

        Args:
            run: one that this receiver has delivered.
            connection: the caller's own, inside its transaction: effect and checkpoint are
                committed or rolled back together.
            states: returns the digests, up to 64 bytes each, of the groups that have changed since
                `states` was asked last, by group. What it gave to a call that failed, or is
                repeated, is kept.

        Raises:
            SettingError: the run was not delivered here, `connection` is outside of a transaction,
                or given to a shadow; or digests cannot be stored.
            CheckpointLost: another receiver has moved the checkpoint, or an effect would be
                committed twice: roll back and stop.
            RetryError: it is not known whether it was stored: call again.
        """
        self._home.check()
        place = self._running(self._place)
        if self._shadow is None:
            await place.save(run, connection, states)
            return
        if connection is not None:
            raise SettingError("connection", "given", "none: a shadow has no effects")
        await place.save(run, None)
        if states is not None:
            self._shadow.compare(run, states)

    async def run(self, handler: Callable[[Run], Awaitable[None]]) -> None:
        """Hand each run to `handler`, and store the checkpoint after it, until the iteration ends.

        The callback form of the iteration. A handler that calls `checkpoint` with its own
        connection has stored it already. Otherwise effect and checkpoint are two steps: a run is
        handed over again after a crash between them, so the handler must tolerate repeats. What the
        handler raises is raised here, and the next call of `run` begins with the same run. It waits
        for a database that is away.

        Raises:
            NotAsync: the handler is no async function.
            CheckpointLost: another receiver has moved the checkpoint.
            OrderchainError: one of the errors of the iteration.
        """
        check_handler(handler)
        while not self._waits.is_stopping:
            if self._unsaved is not None:
                await self._save_handled(self._unsaved)
                self._unsaved = None
            run = self._unhandled or await anext(self, None)
            if run is None:
                return
            self._unhandled = run
            await result_of(handler(run))
            self._unhandled, self._unsaved = None, run
            self._running(self._place).come_back()
        if self._unsaved is not None:
            await self._save_handled(self._unsaved)
            self._unsaved = None

    async def _save_handled(self, run: Run) -> None:
        place = self._running(self._place)
        while place.must_save(run):
            try:
                await place.save(run, None)
            except AWAY as error:
                if self._waits.is_stopping:
                    raise
                with suppress(StopAsked):  # then it is tried one last time
                    await self._waits.pause(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Run:
        self._home.check()
        core, receive_loop = self._running(self._core), self._running(self._receive_loop)
        self._running(self._place).come_back()
        if core.halted_by is not None:
            await self._halt(core, core.halted_by)
        try:
            # What was found while no caller waited is raised even if `stop` was called since.
            waits = self._waits
            while self._is_holding or not (
                receive_loop.is_over or (waits.is_stopping and not waits.is_busy)
            ):
                run = await self._step(core, receive_loop)
                if run is not None:
                    self._running(self._place).deliver(run)
                    receive_loop.watch.lag.deliver(run.last_id, len(run.events))
                    return run
        except StopAsked:
            pass
        except HaltError as error:
            await self._halt(core, error)
        self._end_waits(StoppedError(f"{self._label}: ended after id {self.head_delivered}"))
        raise StopAsyncIteration

    @property
    def _is_holding(self) -> bool:
        return self._shadow is not None and self._shadow.is_holding

    async def _step(self, core: ReceiveCore, receive_loop: ReceiveLoop) -> Run | None:
        """Return the next run; None if there is none yet."""
        shadow = self._shadow
        if shadow is None or not shadow.is_holding:
            run = await receive_loop.step()
            self._log_state(core.state)
            if shadow is None or run is None:
                return run
            receive_loop.watch.lag.see(run.last_id)
            shadow.hold(run)
        return await shadow.next_part(self._running(self._place).delivered)

    async def until_delivered(self, row_id: int) -> None:
        """Return once everything up to `row_id` was delivered to the caller and processed.

        With it a service reads its own writes: `ack = await sequencer.submit(...)`, then `await
        receiver.until_delivered(ack.id)`, then read what the receiver's caller makes of orders. Any
        number of tasks may call it beside the task that iterates; alone it moves nothing.

        A row is processed when `checkpoint` was called for it; if that was in the caller's own
        transaction, once the caller asks for the next run or checkpoint, since by then it has
        committed. Without a store, a row is processed if it was delivered before the run
        that is now requested. Rows before the place at which the receiver began count as processed.
        There is no deadline: for an id that no row has, this waits until a later row comes.

        Raises:
            HaltError: the receiver halts.
            StoppedError: it ends before `row_id`, or is closed.
            SettingError: it was not started.
        """
        self._home.check()
        await self._running(self._place).worked_off.until(row_id)

    def _end_waits(self, error: Exception, after_id: int | None = None) -> None:
        """Answer those who wait for what will no longer be processed."""
        if self._place is not None:
            end_id = self.head_delivered if after_id is None else after_id
            self._place.worked_off.end(error, end_id)

    # -- small things --------------------------------------------------------------------------

    @property
    def _label(self) -> str:
        return f"chain {self._config.chain_id}: receiver {self._name!r}"

    @property
    def _name(self) -> str:
        store = self._checkpoints
        return self._config.name or ("" if store is None else store.receiver)

    @staticmethod
    def _running(part: _T | None) -> _T:
        if part is None:
            raise SettingError("receiver", "not started", "async with Receiver(...)")
        return part

    async def _halt(self, core: ReceiveCore, error: HaltError) -> NoReturn:
        core.halt(error)
        self._log_state(core.state)
        self._end_waits(error)
        await self._store_halt(error)
        raise error

    async def _store_halt(self, error: HaltError) -> None:
        if not self._is_halt_stored and self._checkpoints is not None:
            self._is_halt_stored = await store_halt(self._checkpoints, error, self.head_delivered)

    def _log_state(self, state: State) -> None:
        if state is self._logged_state:
            return
        self._logged_state = state
        level = logging.ERROR if state is State.HALTED else logging.INFO
        chain_id, head = self._config.chain_id, self.head_delivered
        error = self._core and self._core.halted_by
        why = f": {reason_in_chain(chain_id, error)} ({HALT_RUNBOOK})" if error else ""
        _log.log(level, "chain %d: %s at %d%s", chain_id, state.value, head, why)
        if state is State.LIVE:
            self.live.set()
        if self._on_state is not None:
            try:
                self._on_state(state)
            except Exception:  # noqa: BLE001 - no run may be lost by it, no halt left unstored
                _log.exception("chain %d: on_state failed", chain_id)
