"""Publishes what was committed, in order; a full queue slows commits while the broker answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from orderchain.backoff import Backoff
from orderchain.errors import RetryError
from sequencer.framing import batch_frames, has_unfit_row, heartbeat_frame
from sequencer.latency import Latency

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from random import Random

    from orderchain.batch import Batch, Term
    from orderchain.clock import Clock
    from orderchain.ports import FrameSink
    from sequencer.config import SequencerConfig

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.2
_RETRY_SECONDS_MAX: Final = 5.0
"""Back-off after a failed send: doubles up to this, so that a broker that returns is found soon."""

_SEND_BYTES_MAX: Final = 2**20
"""Row bytes encoded and sent at once: encoding holds the event loop for about 2 ms per MiB, and a
failed send repeats them all. A larger batch is encoded whole and sent in parts of this size: a
broker that is slow is seen to acknowledge."""


class Publisher:
    """A queue of committed batches that empties into a sink.

    While the broker acknowledges, a full queue slows the commits down. It forgets only a broker
    that is away: then the queue is dropped, and when the broker is back the head is published with
    a heartbeat, the skipped range is recorded, and the receivers, which have followed by the
    database, go on live.
    """

    def __init__(
        self,
        config: SequencerConfig,
        sink: FrameSink,
        term: Term,
        clock: Clock,
        *,
        skip: Callable[[int, int], Awaitable[None]],
        random: Random | None = None,
    ) -> None:
        """Publish to `sink`, from `term` on; `skip` does what `ChainStore.skip_published` says."""
        self._backoff = Backoff(_RETRY_SECONDS, _RETRY_SECONDS_MAX, random=random)
        self._config = config
        self._record_skip = skip
        self._sink = sink
        self._term = term
        self._clock = clock
        # Whether the last batch was full: then the next one most often is there already.
        self._is_full_batch = False
        self._sent_ns = clock.monotonic_ns()
        # When the oldest send began that the broker has not answered since; None when it answers.
        self._unanswered_since_ns: int | None = None
        self._acknowledged_ns = 0
        """When the broker last acknowledged something of the queue."""
        self._queue: deque[Batch] = deque()
        self._queue_bytes = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._has_moved = asyncio.Event()
        self._idle.set()
        # Invariant: published_id <= _forgotten_until (if any) <= first pid in the queue <= head_id.
        self.published_id = term.published_id
        self._forgotten_until: int | None = None
        self._head_id, self._head_seal = term.last_id, term.last_seal
        self.frames_sent = 0
        self.heartbeats_sent = 0
        self.send_failures = 0
        self.waits = 0
        self.waited_seconds = 0.0
        self.latency = Latency()

    @property
    def queue_bytes(self) -> int:
        """Row bytes of the batches that wait for the broker."""
        return self._queue_bytes

    @property
    def is_full(self) -> bool:
        """Whether the next commit has to wait; see `room`."""
        return self._queue_bytes > self._config.publish_queue_bytes_max

    @property
    def away_seconds(self) -> float:
        """For how long the broker has given no answer, while it was asked for one."""
        if self._unanswered_since_ns is None:
            return 0.0
        return (self._clock.monotonic_ns() - self._unanswered_since_ns) / 1e9

    def lead(self, term: Term) -> None:
        """Publish under a newer term of this same process, from now on."""
        self._term = term

    def offer(self, batch: Batch) -> None:
        """Queue a committed batch, which follows the one offered before. Never waits."""
        self._is_full_batch = batch.row_count >= self._config.batch_rows_max
        self._head_id, self._head_seal = batch.last_id, batch.seal
        self._queue.append(batch)
        self._queue_bytes += batch.size
        self._idle.clear()
        if self.is_full and self.away_seconds >= self._config.publish_wait_seconds:
            self.forget(batch.last_id)
        # What may wait for others wakes nobody: a turn of the loop per commit is what is saved.
        if len(self._queue) <= 1 or not self._seconds_to_wait():
            self._wake.set()

    async def room(self) -> None:
        """Wait while the queue is full and the broker acknowledges what is in it.

        Once nothing was acknowledged for `publish_wait_seconds` the queue is forgotten; not waited
        for at all is a broker that was silent for so long already. To be called before a commit,
        so that the queue grows beyond its bound by what is on its way to the database, no more: so
        much has to be acknowledged until there is room.
        """
        if not self.is_full:
            return
        began_ns = self._clock.monotonic_ns()
        self.waits += 1
        try:
            while self.is_full:
                since_ns = max(began_ns, self._acknowledged_ns)
                idle = max((self._clock.monotonic_ns() - since_ns) / 1e9, self.away_seconds)
                if idle >= self._config.publish_wait_seconds:
                    self.forget(self._head_id)
                    return
                await self._wait_for_move(self._config.publish_wait_seconds - idle)
        finally:
            self.waited_seconds += (self._clock.monotonic_ns() - began_ns) / 1e9

    async def _wait_for_move(self, seconds: float) -> None:
        self._has_moved.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_moved.wait()

    def forget(self, until_id: int) -> None:
        """Drop the queue, whose last row is `until_id`: those rows will never be published."""
        _log.warning(
            "chain %d: rows up to %d are not published: the queue is full, and the broker was away "
            "for %.1f s",
            self._term.chain_id,
            until_id,
            self.away_seconds,
        )
        self._queue.clear()
        self._queue_bytes = 0
        self._forgotten_until = until_id
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            try:
                await self._publish_next()
                self._backoff.reset()
            except RetryError as error:
                self.send_failures += 1
                _log.warning("chain %d: %s; trying again", self._term.chain_id, error)
                await asyncio.sleep(self._backoff.next_seconds())

    async def drain(self) -> None:
        """Return once all that was offered is published. The caller brings the deadline."""
        await self._idle.wait()

    async def _publish_next(self) -> None:
        """Send the forgotten range's end, or the next batches, or after an idle time the head."""
        if self._forgotten_until is not None:
            await self._skip(self._forgotten_until)
        elif (seconds := self._seconds_to_wait()) > 0:
            await self._wait(seconds)  # then looked at anew: it may have been forgotten
        elif self._queue:
            await self._publish_front()
        else:
            self._idle.set()
            await self._wait_or_beat()

    def _seconds_to_wait(self) -> float:
        """Return for how long the frames of the next commits may still join those that wait."""
        if not self._is_full_batch or not self._queue or self._queue_bytes >= _SEND_BYTES_MAX:
            return 0.0
        since = (self._clock.monotonic_ns() - self._sent_ns) / 1e9
        return max(self._config.publish_interval_seconds - since, 0.0)

    def _next_batches(self) -> list[Batch]:
        """Return the batches at the front of the queue that go out together; they stay in it."""
        batches: list[Batch] = []
        bytes_ = 0
        for batch in self._queue:
            bytes_ += batch.size
            if batches and bytes_ > _SEND_BYTES_MAX:
                break
            if has_unfit_row(batch, self._frame_bytes_max()):
                break
            batches.append(batch)
        return batches

    def _frame_bytes_max(self) -> int:
        return min(self._config.frame_bytes_max, self._sink.frame_bytes_max)

    async def _publish_front(self) -> None:
        """Publish what is at the front of the queue, or skip it when the topic cannot take it."""
        batches = self._next_batches()
        if batches:
            await self._publish(batches)
        else:
            await self._skip_unfit(self._queue[0])

    async def _publish(self, batches: list[Batch]) -> None:
        term, frame_bytes_max = self._term, self._frame_bytes_max()
        frames = [
            frame for batch in batches for frame in batch_frames(batch, term, frame_bytes_max)
        ]
        began_ns = self._sent_ns = self._clock.monotonic_ns()
        for part in _parts(frames):
            await self._send(part)
            self._acknowledged_ns = self._clock.monotonic_ns()
        self.latency = self.latency.with_value((self._clock.monotonic_ns() - began_ns) / 1e9)
        self.frames_sent += len(frames)
        self._done_with(batches)

    async def _skip_unfit(self, batch: Batch) -> None:
        """Record a batch as skipped that the topic would refuse for ever.

        Whole, since a restart publishes again from the end of a batch.
        """
        # The first send after a close reads the topic's limit again: it may have been raised.
        await self._sink.close()
        await self._beat()
        if not has_unfit_row(batch, self._frame_bytes_max()):
            return
        _log.warning(
            "chain %d: rows %d to %d are not published: one of them is too large for the topic",
            batch.chain_id,
            batch.first_id,
            batch.last_id,
        )
        await self._record_skip(self.published_id, batch.last_id)
        self._done_with([batch])

    def _done_with(self, batches: list[Batch]) -> None:
        """Move on behind `batches`, which were at the front of the queue."""
        self.published_id = batches[-1].last_id
        # In the meantime the queue may have been forgotten, these batches with it.
        for batch in batches:
            if self._queue and self._queue[0] is batch:
                self._queue.popleft()
                self._queue_bytes -= batch.size
        self._has_moved.set()

    async def _skip(self, until_id: int) -> None:
        """Publish the head in place of the forgotten rows, then record the range as skipped."""
        await self._beat()
        if until_id > self.published_id:
            await self._record_skip(self.published_id, until_id)
            self.published_id = until_id
        if self._forgotten_until == until_id:
            self._forgotten_until = None

    async def _wait_or_beat(self) -> None:
        """Wait for work; publish the head when none comes for the time of a heartbeat."""
        if not await self._wait(self._config.heartbeat_seconds):
            await self._beat()

    async def _wait(self, seconds: float) -> bool:
        """Wait for a batch that is to go at once; return whether one has come."""
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._wake.wait()
        return False

    async def _beat(self) -> None:
        frame = heartbeat_frame(self._term, last_id=self._head_id, last_seal=self._head_seal)
        await self._send([frame])
        self.heartbeats_sent += 1

    async def _send(self, frames: Sequence[bytes]) -> None:
        if self._unanswered_since_ns is None:
            self._unanswered_since_ns = self._clock.monotonic_ns()
        await self._sink.send(frames)
        self._unanswered_since_ns = None


def _parts(frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield the frames of one send after the other: one frame, or several up to the bound."""
    part: list[bytes] = []
    size = 0
    for frame in frames:
        size += len(frame)
        if part and size > _SEND_BYTES_MAX:
            yield part
            part, size = [], len(frame)
        part.append(frame)
    yield part
