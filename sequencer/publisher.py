"""Publishes stored batches as frames, in order, to the chain's topic."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from chain_kernel.clock import Backoff
from chain_kernel.errors import FrameError, OrderchainError, RetryError, TopicError
from chain_kernel.frame import HEADER_BYTES, FrameHeader, decode_header, encode_frame
from chain_kernel.limits import FRAME_BYTES_MIN, FRAME_ROWS_MAX
from chain_kernel.seal import SEAL_BYTES
from chain_kernel.text import SummedLog
from sequencer.stats import Timing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from random import Random

    from opentelemetry.context import Context

    from chain_kernel.clock import Clock
    from chain_kernel.model import Term
    from chain_kernel.ports import FrameSink
    from chain_kernel.seal import Batch
    from chain_kernel.tracing import Tracing
    from sequencer.config import SequencerConfig
    from sequencer.stats import SequencerCounters

    Skip = Callable[[int, int], Awaitable[None]]


_ROW_OVERHEAD_BYTES: Final = 64
"""Bytes that the body adds to key and payload of its only row: at most 46 of MessagePack."""


_MOMENTS: Final = 16
"""Idle chains of a process beat at so many moments per interval, and share a request to Kafka."""


def seconds_to_beat(now: float, idle_seconds: float) -> float:
    """Return how long to wait for the first common moment after `idle_seconds`."""
    return idle_seconds + -(now + idle_seconds) % (idle_seconds / _MOMENTS)


def highest_id(records: Iterable[bytes | None], chain_id: int) -> int:
    """Return the highest id in frames of the chain among `records`; 0 for none.

    The sender of the frames is not verified.
    """
    highest = 0
    for record in records:
        try:
            header = decode_header(record)
        except FrameError:
            continue
        if header.chain_id == chain_id:
            highest = max(highest, header.last_id)
    return highest


def has_unfit_row(batch: Batch, frame_bytes_max: int) -> bool:
    """Return whether a row of `batch` fits into no frame.

    True only if a topic takes less than FRAME_BYTES_MIN, into which every legal row fits.
    """
    if frame_bytes_max >= FRAME_BYTES_MIN:
        return False
    room = frame_bytes_max - HEADER_BYTES - _ROW_OVERHEAD_BYTES
    rows = zip(batch.columns.keys, batch.columns.payloads, strict=True)
    return any(len(key.encode()) + len(payload) > room for key, payload in rows)


def batch_frames(batch: Batch, term: Term, frame_bytes_max: int) -> list[bytes]:
    """Return the frames of `batch` in order, each at most `frame_bytes_max` long.

    `term` is the publisher's, which may be later than the batch's. A row's image is always longer
    than its share of a frame, so the images show how many slices are needed before any is made;
    slices of uneven rows are halved again. No row of `batch` may be unfit (`has_unfit_row`).
    """
    slices = max(
        -(-(batch.size + HEADER_BYTES) // frame_bytes_max),
        -(-batch.row_count // FRAME_ROWS_MAX),
    )
    step = -(-batch.row_count // slices)
    return [
        frame
        for start in range(0, batch.row_count, step)
        for frame in _slice(batch, term, frame_bytes_max, start, min(start + step, batch.row_count))
    ]


def heartbeat_frame(term: Term, *, last_id: int, last_seal: bytes) -> bytes:
    """Return the frame that carries only the head."""
    return encode_frame(
        FrameHeader(
            chain_id=term.chain_id,
            epoch=term.epoch,
            publisher_epoch=term.epoch,
            publisher_nonce=term.nonce,
            first_pid=last_id,
            first_id=last_id,
            last_id=last_id,
            count=0,
            seal_before=last_seal,
        ),
        (),
        term.frame_key,
    )


def _slice(
    batch: Batch, term: Term, frame_bytes_max: int, start: int, stop: int
) -> Iterator[bytes]:
    """Yield the frames of the rows from `start` to `stop`."""
    rows = batch.columns.cut(start, stop)
    is_batch_end = stop == batch.row_count
    frame = encode_frame(
        FrameHeader(
            chain_id=batch.chain_id,
            epoch=batch.epoch,
            publisher_epoch=term.epoch,
            publisher_nonce=term.nonce,
            first_pid=rows.pids[0],
            first_id=rows.ids[0],
            last_id=rows.ids[-1],
            count=stop - start,
            seal_before=batch.seal_before,
            seal_after=batch.seal if is_batch_end else bytes(SEAL_BYTES),
            is_batch_end=is_batch_end,
        ),
        rows,
        term.frame_key,
    )
    if len(frame) <= frame_bytes_max:
        yield frame
        return
    middle = (start + stop) // 2
    yield from _slice(batch, term, frame_bytes_max, start, middle)
    yield from _slice(batch, term, frame_bytes_max, middle, stop)


_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.2
_RETRY_SECONDS_MAX: Final = 5.0
"""Back-off after a failed send: doubles up to this, so that a broker that returns is found soon."""

_SEND_BYTES_MAX: Final = 2**20
"""Row bytes encoded and sent at once: encoding holds the event loop for about 2 ms per MiB, and a
failed send repeats them all. A larger batch is encoded as a whole and sent in parts of this size,
so that a slow broker is seen to acknowledge."""


class Publisher:
    """A queue of committed batches that empties into a sink.

    While the broker acknowledges, a full queue slows the commits down. The queue is dropped only if
    the broker is away. When the broker is back, the head is published with a heartbeat, the skipped
    range is recorded, and the receivers, which have followed the database, continue live.
    """

    def __init__(
        self,
        config: SequencerConfig,
        sink: FrameSink,
        term: Term,
        clock: Clock,
        counters: SequencerCounters,
        *,
        random: Random | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Publish to `sink`, from `term` on."""
        self._backoff = Backoff(_RETRY_SECONDS, _RETRY_SECONDS_MAX, random=random)
        self._outage = SummedLog(_log, logging.WARNING)
        self._tuning = config.tuning
        self._sink = sink
        self._term = term
        self._clock = clock
        # Whether the last batch was full: then the next one usually is there already.
        self._is_full_batch = False
        self._sent_ns = clock.monotonic_ns()
        # When the oldest unanswered send began; None when the broker answers.
        self._unanswered_since_ns: int | None = None
        self.refusal = ""
        """The reason why the last send failed; empty when the broker answers."""
        self._acknowledged_ns = 0
        """Time at which the broker last acknowledged something of the queue."""
        self._queue: deque[Batch] = deque()
        # When each batch of the queue was offered.
        self._offered_ns: deque[int] = deque()
        self._tracing = tracing
        # By the seal before each batch of the queue, the trace of its commit, if there is one.
        self._traces: dict[bytes, Context] = {}
        self._queue_bytes = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._has_moved = asyncio.Event()
        self._idle.set()
        # Invariant: published_id <= _forgotten_until (if any) <= first pid in the queue <= head_id.
        self.published_id = term.published_id
        self._forgotten_until: int | None = None
        self._head_id, self._head_seal = term.last_id, term.last_seal
        self._counters = counters
        self.timing = Timing()

    @property
    def queue_bytes(self) -> int:
        """Row bytes of the batches that wait for the broker."""
        return self._queue_bytes

    @property
    def is_full(self) -> bool:
        """True if the next commit has to wait in `room`."""
        return self._queue_bytes > self._tuning.publish_queue_bytes_max

    @property
    def away_seconds(self) -> float:
        """Time for which the broker has not answered a send; 0 when it answers."""
        if self._unanswered_since_ns is None:
            return 0.0
        return (self._clock.monotonic_ns() - self._unanswered_since_ns) / 1e9

    @property
    def unpublished_seconds(self) -> float:
        """Time for which the oldest batch has waited for the broker; 0 when none waits."""
        if self._offered_ns:
            return (self._clock.monotonic_ns() - self._offered_ns[0]) / 1e9
        return 0.0 if self._forgotten_until is None else self.away_seconds

    def lead(self, term: Term) -> None:
        """From now on, publish under a newer term of this same process."""
        self._term = term

    def offer(self, batch: Batch, trace: Context | None = None) -> None:
        """Queue a committed batch, which follows the one offered before. Never waits.

        `trace` is that of its commit, if there is one.
        """
        if trace is not None:
            self._traces[batch.seal_before] = trace
        self._is_full_batch = batch.row_count >= self._tuning.batch_rows_max
        self._head_id, self._head_seal = batch.last_id, batch.seal
        self._queue.append(batch)
        self._offered_ns.append(self._clock.monotonic_ns())
        self._queue_bytes += batch.size
        self._idle.clear()
        if self.is_full and self.away_seconds >= self._tuning.publish_wait_seconds:
            self.forget(batch.last_id)
        # A batch that may wait for others does not wake the task: it saves a loop turn per commit.
        if len(self._queue) <= 1 or not self._seconds_to_wait():
            self._wake.set()

    async def room(self) -> None:
        """Wait while the queue is full and the broker acknowledges what is in it.

        If nothing was acknowledged for `publish_wait_seconds`, the queue is dropped; if the broker
        was already silent for that long, this does not wait at all. Call it before a commit, so
        that the queue exceeds its bound only by what is on its way to the database: that much must
        be acknowledged before there is room.
        """
        if not self.is_full:
            return
        began_ns = self._clock.monotonic_ns()
        self._counters.publish_waits += 1
        try:
            while self.is_full:
                since_ns = max(began_ns, self._acknowledged_ns)
                idle = max((self._clock.monotonic_ns() - since_ns) / 1e9, self.away_seconds)
                if idle >= self._tuning.publish_wait_seconds:
                    self.forget(self._head_id)
                    return
                self._has_moved.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._tuning.publish_wait_seconds - idle):
                        await self._has_moved.wait()
        finally:
            self._counters.publish_wait_seconds += (self._clock.monotonic_ns() - began_ns) / 1e9

    def forget(self, until_id: int) -> None:
        """Drop the queue, whose last row is `until_id`: those rows will never be published."""
        _log.warning(
            "chain %d: rows up to %d are not published: the queue is full, and the broker was away "
            "for %.1f s",
            self._term.chain_id,
            until_id,
            self.away_seconds,
        )
        self.close()
        self._forgotten_until = until_id
        self._idle.clear()
        self._wake.set()

    async def run(self, skip: Skip) -> None:
        """Publish until cancelled; `skip` does what `ChainStore.skip_published` does."""
        has_failed = not await self._open()
        while True:
            try:
                await self._publish_next(skip)
                if has_failed:
                    self._backoff.reset()
                    has_failed = False
                    self._outage.log()
            except TopicError as error:
                has_failed = True
                self._counters.send_failures += 1
                if self.refusal != str(error):
                    self._refuse(error)
                await asyncio.sleep(self._backoff.next_seconds())
            except RetryError as error:
                has_failed = True
                self._counters.send_failures += 1
                self.refusal = str(error)
                self._outage.repeat(f"chain {self._term.chain_id}: {error}; trying again")
                await asyncio.sleep(self._backoff.next_seconds())

    async def _open(self) -> bool:
        """Return whether broker and topic are there. The leader leads without them, too."""
        self._unanswered_since_ns = self._clock.monotonic_ns()
        try:
            await self._sink.start(self._term.topic, self._term.partition)
        except OrderchainError as error:
            self._refuse(error)
            return False
        self._unanswered_since_ns = None
        return True

    def _refuse(self, error: Exception) -> None:
        """Log once what the next sends will meet, too, until a person does something."""
        self.refusal = str(error)
        _log.error(
            "chain %d: %s; leading without it: receivers read the database",
            self._term.chain_id,
            error,
        )

    def close(self) -> None:
        """Drop the queue."""
        self._queue.clear()
        self._offered_ns.clear()
        self._traces.clear()
        self._queue_bytes = 0

    async def drain(self) -> None:
        """Return once all that was offered is published. The caller sets the deadline."""
        await self._idle.wait()

    async def _publish_next(self, skip: Skip) -> None:
        """Send the dropped range's end, or the next batches, or after an idle time the head."""
        if self._forgotten_until is not None:
            await self._skip(self._forgotten_until, skip)
        elif (seconds := self._seconds_to_wait()) > 0:
            await self._wait(seconds)  # then check again: the queue may have been dropped
        elif self._queue:
            await self._publish_front(skip)
        else:
            self._idle.set()
            now = self._clock.monotonic_ns() / 1e9
            if not await self._wait(seconds_to_beat(now, self._tuning.heartbeat_seconds)):
                await self._beat()

    def _seconds_to_wait(self) -> float:
        """Return how long the frames of the next commits may still join those that wait."""
        if not self._is_full_batch or not self._queue or self._queue_bytes >= _SEND_BYTES_MAX:
            return 0.0
        since = (self._clock.monotonic_ns() - self._sent_ns) / 1e9
        return max(self._tuning.publish_interval_seconds - since, 0.0)

    def _next_batches(self) -> list[Batch]:
        """Return the batches at the front of the queue to send together; they stay in it."""
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
        return min(self._tuning.frame_bytes_max, self._sink.frame_bytes_max)

    async def _publish_front(self, skip: Skip) -> None:
        """Publish the front of the queue, or skip it if the topic cannot take it."""
        batches = self._next_batches()
        if batches:
            await self._publish(batches)
        else:
            await self._skip_unfit(self._queue[0], skip)

    async def _publish(self, batches: list[Batch]) -> None:
        term, frame_bytes_max = self._term, self._frame_bytes_max()
        frames = [
            frame for batch in batches for frame in batch_frames(batch, term, frame_bytes_max)
        ]
        began_ns = self._sent_ns = self._clock.monotonic_ns()
        for part in _parts(frames):
            await self._send(part)
            self._acknowledged_ns = self._clock.monotonic_ns()
        self.timing.add((self._clock.monotonic_ns() - began_ns) / 1e9)
        self._counters.frames += len(frames)
        self._done_with(batches)

    async def _skip_unfit(self, batch: Batch, skip: Skip) -> None:
        """Record as skipped a batch that the topic would refuse forever.

        It skips the whole batch, since a restart publishes again from the end of a batch.
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
        await skip(self.published_id, batch.last_id)
        self._done_with([batch])

    def _done_with(self, batches: list[Batch]) -> None:
        """Move past `batches`, which were at the front of the queue."""
        self.published_id = batches[-1].last_id
        # Meanwhile the queue may have been dropped, and these batches with it.
        for batch in batches:
            if self._queue and self._queue[0] is batch:
                self._queue.popleft()
                self._offered_ns.popleft()
                self._queue_bytes -= batch.size
                if self._traces:
                    self._traces.pop(batch.seal_before, None)
        self._has_moved.set()

    async def _skip(self, until_id: int, skip: Skip) -> None:
        """Publish the head in place of the dropped rows, then record the range as skipped."""
        await self._beat()
        if until_id > self.published_id:
            await skip(self.published_id, until_id)
            self.published_id = until_id
        if self._forgotten_until == until_id:
            self._forgotten_until = None

    async def _wait(self, seconds: float) -> bool:
        """Wait for a batch that is to be sent at once; return whether one has come."""
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._wake.wait()
        return False

    async def _beat(self) -> None:
        frame = heartbeat_frame(self._term, last_id=self._head_id, last_seal=self._head_seal)
        await self._send([frame])
        self._counters.heartbeats += 1

    async def _send(self, frames: Sequence[bytes]) -> None:
        if self._unanswered_since_ns is None:
            self._unanswered_since_ns = self._clock.monotonic_ns()
        if self._tracing is None:
            await self._sink.send(frames)
        else:
            with self._tracing.publishing(frames, self._traces) as traceparents:
                await self._sink.send(frames, traceparents)
        self._unanswered_since_ns = None
        self.refusal = ""


def _parts(frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield the frames of each send in turn: one frame, or several up to the bound."""
    part: list[bytes] = []
    size = 0
    for frame in frames:
        size += len(frame)
        if part and size > _SEND_BYTES_MAX:
            yield part
            part, size = [], len(frame)
        part.append(frame)
    yield part
