"""A broker in memory: one partition that takes frames, and may fail to."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from orderchain.errors import ConnectError, RetryError
from orderchain.limits import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence


class SendFault(Enum):
    """What happens to one send."""

    LOST = "nothing is stored; the answer says so too late or never"
    STORED = "all is stored, but the acknowledgement is lost"
    CUT = "the first half is stored, the rest is not"


class MemoryLog:
    """The records of one partition, oldest first.

    `is_away` makes every send fail, `record_bytes_max` those with a record above it.
    """

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.is_away = False
        self.record_bytes_max = FRAME_BYTES_MAX
        self.grown = asyncio.Event()

    def append(self, frames: Sequence[bytes]) -> None:
        """Store `frames` and wake whoever waits for `grown`."""
        self.records.extend(frames)
        self.grown.set()


class MemoryFrameSink:
    """Publishes to a log; implements `orderchain.ports.FrameSink`.

    `faults` says what happens to the next sends, one each; then they succeed.
    """

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.faults: deque[SendFault] = deque()
        self.frame_bytes_max = log.record_bytes_max

    async def start(self, topic: str, partition: int) -> None:
        """Accept any topic; see `orderchain.ports.FrameSink.start`."""
        if self.log.is_away:
            raise ConnectError("kafka", "memory", "a broker that answers")

    async def send(self, frames: Sequence[bytes]) -> None:
        """Store `frames`, or meet the next fault; see `orderchain.ports.FrameSink.send`."""
        await asyncio.sleep(0)  # no broker answers within the same turn of the loop
        if self.log.is_away:
            raise RetryError("the broker is away")
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
