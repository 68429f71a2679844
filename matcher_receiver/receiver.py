"""The receiver: what a service that embeds it sees."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import TYPE_CHECKING, Self, TypeVar

from matcher_receiver.backoff import Backoff
from matcher_receiver.core import ReceiveCore
from matcher_receiver.decisions import State
from matcher_receiver.gaps import GapLedger
from matcher_receiver.kit import Kit
from matcher_receiver.place import Place
from matcher_receiver.reception import Reception
from matcher_receiver.stats import Counters, ReceiverStats
from matcher_receiver.waits import StopAsked, Waits
from orderchain.clock import SystemClock
from orderchain.errors import HaltError, NotYetReadable, SettingError
from orderchain.limits import ID_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from matcher_receiver.config import ReceiverConfig
    from orderchain.clock import Clock
    from orderchain.mark import Mark, Standing
    from orderchain.ports import CheckpointStore, FrameSource, GapSource
    from orderchain.run import Run

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


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
        self._counters = Counters()
        backoff = Backoff(config.retry_seconds_max, random or Random())  # noqa: S311 - jitter
        self._waits = Waits(config.chain_id, backoff, self._counters)
        self._core: ReceiveCore | None = None
        self._reception: Reception | None = None
        self._place: Place | None = None
        self._told_state: State | None = None
        self.gaps = GapLedger(config.gaps_kept)
        """The last gaps that were filled."""
        self.live = asyncio.Event()
        """Set once the receiver has caught up and reads live frames; never cleared."""
        self.head_at_start = 0
        """The database's head when this receiver started."""

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
        self._begin(start, standing)
        if is_new and self._checkpoints is not None:
            await self._checkpoints.save(start.id, start)

    def _begin(self, start: Mark, standing: Standing) -> None:
        self.head_at_start = standing.head.last_id
        self._core = ReceiveCore(self._config.chain_id, start)
        self._place = Place(self._checkpoints, start)
        self._reception = Reception(self._kit(self._core), self._until_id())
        try:
            self._reception.begin(standing)
        except HaltError as error:
            self._halt(self._core, error)
        self._tell_state(self._core.state)

    def _kit(self, core: ReceiveCore) -> Kit:
        return Kit(
            config=self._config,
            core=core,
            frames=self._frames,
            gap_source=self._gap_source,
            clock=self._clock,
            waits=self._waits,
            counters=self._counters,
            ledger=self.gaps,
        )

    def _until_id(self) -> int | None:
        until_id = self._config.until_id
        if not self._config.to_head_at_start:
            return until_id
        return min(ID_MAX if until_id is None else until_id, self.head_at_start)

    async def _close(self) -> None:
        if self._reception is not None:
            await self._reception.close()
        closing = [self._frames.close(), self._gap_source.close()]
        if self._checkpoints is not None:
            closing.append(self._checkpoints.close())
        await asyncio.gather(*closing)  # each has a deadline of its own

    def stop(self) -> None:
        """End the iteration: at once when it waits, else after the run that is being worked on."""
        self._waits.stop()

    # -- what a caller sees --------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the receiver is doing."""
        return self._running(self._core).state

    @property
    def head_delivered(self) -> int:
        """Id of the last row that was handed on; before the first, that of the checkpoint."""
        return 0 if self._place is None else self._place.delivered.id

    def stats(self) -> ReceiverStats:
        """Return the counters as they are now."""
        core, counters = self._running(self._core), self._counters
        return ReceiverStats(
            state=core.state,
            head_delivered=self.head_delivered,
            head_seen=self._running(self._reception).watch.head_seen,
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
        await self._running(self._place).save(run, connection)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Run:
        core, reception = self._running(self._core), self._running(self._reception)
        if core.halted_by is not None:
            raise core.halted_by
        try:
            while not (reception.is_over or self._waits.is_stopping):
                run = await reception.step()
                self._tell_state(core.state)
                if run is not None:
                    self._running(self._place).delivered = run.end
                    return run
        except StopAsked:
            pass
        except HaltError as error:
            self._halt(core, error)
        raise StopAsyncIteration

    # -- small things --------------------------------------------------------------------------

    @staticmethod
    def _running(part: _T | None) -> _T:
        if part is None:
            raise SettingError("receiver", "not started", "async with Receiver(...)")
        return part

    def _halt(self, core: ReceiveCore, error: HaltError) -> None:
        core.halt(error)
        self._tell_state(core.state)
        _log.error("chain %d: halted: %s", self._config.chain_id, error)
        raise error

    def _tell_state(self, state: State) -> None:
        if state is self._told_state:
            return
        self._told_state = state
        _log.info("chain %d: %s at %d", self._config.chain_id, state.value, self.head_delivered)
        if state is State.LIVE:
            self.live.set()
        if self._on_state is not None:
            self._on_state(state)
