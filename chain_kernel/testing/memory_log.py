"""A broker in memory, which may fail: a partition of frames, and a topic of orders."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from chain_kernel.errors import ConnectError, RetryError, SettingError, TopicError
from chain_kernel.limits import FRAME_BYTES_MAX
from chain_kernel.testing.virtual_loop import check_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chain_kernel.ports import SourceRecord


class SendFault(Enum):
    """What happens to one send."""

    LOST = "nothing is stored; the answer says so too late or never"
    STORED = "all is stored, but the acknowledgement is lost"
    CUT = "the first half is stored, the rest is not"


class MemoryLog:
    """The records of one partition, oldest first.

    `is_away` makes every send fail, `record_bytes_max` those with a record above it. With
    `is_gone` the broker is there, and the topic is not.
    """

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.first_offset = 0
        """Offset of the oldest record that is still kept."""
        self.is_away = False
        self.is_gone = False
        self.record_bytes_max = FRAME_BYTES_MAX
        self.grown = asyncio.Event()
        self._readers: list[asyncio.Future[None]] = []

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self.first_offset + len(self.records)

    def append(self, frames: Sequence[bytes]) -> None:
        """Store `frames` and wake all who wait for `grown`, or for records."""
        self.records.extend(frames)
        self.grown.set()
        self.wake_readers()

    def read(self, offset: int) -> list[bytes] | None:
        """Return the records from `offset` on; None where `offset` is outside the log."""
        if not self.first_offset <= offset <= self.end_offset:
            return None
        return self.records[offset - self.first_offset :]

    def truncate(self, count: int) -> None:
        """Lose the last `count` records: an unclean election, or a disk's cache."""
        del self.records[max(0, len(self.records) - count) :]

    def expire(self, count: int) -> None:
        """Drop the first `count` records: they were kept for long enough."""
        count = min(count, len(self.records))
        del self.records[:count]
        self.first_offset += count

    def wipe(self) -> None:
        """Lose everything: the topic was deleted and recreated."""
        self.records.clear()
        self.first_offset = 0

    def delete(self) -> None:
        """Delete the topic; it is there again, empty, once `is_gone` is reset."""
        self.wipe()
        self.is_gone = True

    def check_there(self) -> None:
        """Raise TopicError if the topic is gone."""
        if self.is_gone:
            raise TopicError("topic", "memory", "a topic that exists")

    def check_usable(self) -> None:
        """Raise RetryError if records can be neither stored nor read now."""
        if self.is_away:
            raise RetryError("the broker is away")
        if self.is_gone:
            raise RetryError("the topic is gone")

    async def until_grown(self, timeout_seconds: float) -> None:
        """Wait for the next append, at most `timeout_seconds`."""
        reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(timeout_seconds, _wake, reader)
        self._readers.append(reader)
        try:
            await reader
        finally:
            timer.cancel()

    def wake_readers(self) -> None:
        """Make those who wait look again."""
        readers, self._readers = self._readers, []
        for reader in readers:
            _wake(reader)


def _wake(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_result(None)


class MemoryFrameSink:
    """Publishes to a log; implements `chain_kernel.ports.FrameSink`.

    `faults` lists what happens to the next sends, one each; then they succeed.
    """

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.faults: deque[SendFault] = deque()
        self.frame_bytes_max = log.record_bytes_max

    async def start(self, topic: str, partition: int) -> None:
        """Accept any topic; see `chain_kernel.ports.FrameSink.start`."""
        if self.log.is_away:
            raise ConnectError("kafka", "memory", "a broker that answers")
        self.log.check_there()

    async def last_records(self, topic: str, partition: int, at_most: int) -> list[bytes | None]:
        """Return what the log ends with; see `chain_kernel.ports.FrameSink.last_records`."""
        await asyncio.sleep(0)
        self.log.check_usable()
        return [*self.log.records[-at_most:]]

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        """Store `frames`, or meet the next fault; see `chain_kernel.ports.FrameSink.send`."""
        await asyncio.sleep(0)  # no broker answers within the same turn of the loop
        self.log.check_usable()
        self.frame_bytes_max = self.log.record_bytes_max
        if max(map(len, frames)) > self.frame_bytes_max:
            raise RetryError("a record is too large for the topic")
        if not self.faults:
            self.log.append(frames)
            return
        fault = self.faults.popleft()
        if fault is SendFault.STORED:
            self.log.append(frames)
        elif fault is SendFault.CUT:
            self.log.append(frames[: len(frames) // 2])
        raise RetryError(f"send: {fault.value}")

    async def close(self) -> None:
        """Nothing is held."""


class MemoryFrameSource:
    """Reads a log from its live end on; implements `chain_kernel.ports.FrameSource`.

    Where its place is no longer in the log it goes on at the live end, as the real one does. `link`
    is what the records pass on their way: it may lose, repeat and reorder them.
    """

    def __init__(
        self, log: MemoryLog, link: Callable[[list[bytes]], list[bytes | None]] | None = None
    ) -> None:
        self.log = log
        self._link = link
        self._offset: int | None = None

    @property
    def place(self) -> tuple[str, int] | None:
        """A log in memory is of no topic; see `chain_kernel.ports.FrameSource.place`."""
        return None

    async def start(self) -> None:
        """Go to the live end; see `chain_kernel.ports.FrameSource.start`."""
        check_alive()
        if self.log.is_away:
            raise ConnectError("kafka", "memory", "a broker that answers")
        self.log.check_there()
        self._offset = self.log.end_offset

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the next records; see `chain_kernel.ports.FrameSource.records`."""
        check_alive()
        if self._offset is None:
            raise SettingError("frame source", "not started", "start() first")
        if not self._next(self._offset):
            await self.log.until_grown(timeout_seconds)
            check_alive()
        self.log.check_usable()
        found = self._next(self._offset)
        self._offset = self.log.end_offset
        found = found or []
        return list(found) if self._link is None else self._link(found)

    async def close(self) -> None:
        """Stop reading."""
        self._offset = None

    def _next(self, offset: int) -> list[bytes] | None:
        return None if self.log.is_away or self.log.is_gone else self.log.read(offset)


class MemoryRecord(Struct, frozen=True, kw_only=True):
    """Implements `chain_kernel.ports.SourceRecord`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class MemoryTopic:
    """Partitions by number. `is_away` makes every call fail as if nothing listened."""

    def __init__(self, partitions: int) -> None:
        self.logs: dict[int, list[MemoryRecord]] = {number: [] for number in range(partitions)}
        self.first = dict.fromkeys(self.logs, 0)
        self.end = dict.fromkeys(self.logs, 0)
        self.is_away = False
        self.grown = asyncio.Event()

    def add(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp: int = -1
    ) -> int:
        """Append a record and return its offset."""
        offset = self.end[partition]
        self.logs[partition].append(
            MemoryRecord(offset=offset, timestamp=timestamp, key=key, value=value)
        )
        self.end[partition] = offset + 1
        self.grown.set()
        return offset

    def add_marker(self, partition: int) -> None:
        """Append an entry that is no record for a reader: the end of a transaction."""
        self.end[partition] += 1
        self.grown.set()

    def add_partition(self) -> int:
        """Make the topic larger and return the new partition."""
        number = len(self.logs)
        self.logs[number], self.first[number], self.end[number] = [], 0, 0
        self.grown.set()
        return number

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete the oldest records, as retention does."""
        self.first[partition] = offset
        self.logs[partition] = [
            record for record in self.logs[partition] if record.offset >= offset
        ]

    def read(
        self, offsets: Mapping[int, int], at_most: int
    ) -> dict[int, tuple[Sequence[SourceRecord], int]]:
        """Return by partition the records from its offset on, and the offset after them.

        Raises RetryError where the offsets do not fit the topic.
        """
        if self.is_away:
            raise RetryError("the broker is away")
        if offsets.keys() != self.logs.keys():
            raise RetryError("there are other partitions now")
        found: dict[int, tuple[Sequence[SourceRecord], int]] = {}
        share = max(at_most // len(offsets), 1)
        for number, offset in offsets.items():
            end = self.end[number]
            if not self.first[number] <= offset <= end:
                raise RetryError(f"offset {offset} is out of range")
            left = [record for record in self.logs[number] if record.offset >= offset]
            records = left[:share]
            next_offset = end if len(left) <= share else records[-1].offset + 1
            if next_offset > offset:
                found[number] = (records, next_offset)
        return found

    def clear(self) -> None:
        """Delete the topic and recreate it under the same name."""
        for number in self.logs:
            self.logs[number], self.first[number], self.end[number] = [], 0, 0


class MemoryRecordSource:
    """Reads a topic in memory; implements `chain_kernel.ports.RecordSource`.

    `losses` makes that many of the next reads fail after they have moved on, like a client whose
    second partition fails after its first one was read.
    """

    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic
        self.losses = 0
        self._offsets: dict[int, int] = {}

    async def open(self) -> dict[int, tuple[int, int]]:
        """Return the bounds; see `chain_kernel.ports.RecordSource.open`."""
        await asyncio.sleep(0)  # no broker answers within the same turn of the loop
        if self.topic.is_away:
            raise ConnectError("kafka", "memory", "a broker that answers")
        return {
            number: (self.topic.first[number], self.topic.end[number]) for number in self.topic.logs
        }

    async def seek(self, offsets: Mapping[int, int]) -> None:
        """Go to `offsets`; see `chain_kernel.ports.RecordSource.seek`."""
        self._offsets = dict(offsets)

    async def records(
        self, at_most: int, timeout_seconds: float
    ) -> dict[int, tuple[Sequence[SourceRecord], int]]:
        """Return the next records; see `chain_kernel.ports.RecordSource.records`."""
        await asyncio.sleep(0)
        self.topic.grown.clear()
        found = self._next(at_most)
        if not found:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self.topic.grown.wait()
            except TimeoutError:
                return {}
            found = self._next(at_most)
        if self.losses and found:
            self.losses -= 1
            raise RetryError("one partition failed")
        return found

    async def close(self) -> None:
        """Nothing is held."""

    def _next(self, at_most: int) -> dict[int, tuple[Sequence[SourceRecord], int]]:
        found = self.topic.read(self._offsets, at_most)
        self._offsets.update((number, next_offset) for number, (_, next_offset) in found.items())
        return found
