"""A broker in memory, which may fail: the partition of frames."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from chain_kernel.errors import ConnectError, RetryError, SettingError, TopicError
from chain_kernel.limits import FRAME_BYTES_MAX
from chain_kernel.testing.virtual_loop import check_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class SendFault(Enum):
    """The fate of one send."""

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
        """Accept any topic."""
        if self.log.is_away:
            raise ConnectError("kafka", "memory", "a broker that answers")
        self.log.check_there()

    async def last_records(self, topic: str, partition: int, at_most: int) -> list[bytes | None]:
        """Return what the log ends with."""
        await asyncio.sleep(0)
        self.log.check_usable()
        return [*self.log.records[-at_most:]]

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        """Store `frames`, or meet the next fault."""
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
        self,
        log: MemoryLog,
        link: Callable[[list[bytes]], list[bytes | None]] | None = None,
        *,
        has_rows: bool = True,
    ) -> None:
        """`has_rows`: False for a log of notifications; see `MemoryLease.notify`."""
        self.log = log
        self.has_rows = has_rows
        self._link = link
        self._offset: int | None = None

    @property
    def place(self) -> tuple[str, int] | None:
        """A log in memory is of no topic."""
        return None

    async def start(self) -> None:
        """Go to the live end."""
        check_alive()
        if self.log.is_away:
            raise ConnectError("kafka", "memory", "a broker that answers")
        self.log.check_there()
        self._offset = self.log.end_offset

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the next records."""
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
