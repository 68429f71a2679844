"""A topic of orders in memory, for an intake: its broker may be away, or fail in the middle."""

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct

from chain_kernel.errors import ConnectError, RetryError
from chain_kernel.ports import SourceRecord


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

    def offsets_at(self, time_ms: int) -> dict[int, int]:
        """Return the offset of the first record at or after a time, or the end, by partition."""
        return {
            number: next(
                (record.offset for record in log if record.timestamp >= time_ms), self.end[number]
            )
            for number, log in self.logs.items()
        }

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

    async def offsets_at(self, time_ms: int) -> dict[int, int]:
        """Return offsets by a time; see `chain_kernel.ports.RecordSource.offsets_at`."""
        await self.open()
        return self.topic.offsets_at(time_ms)

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
