"""A publisher's view of the broker at the end of a wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orderchain.errors import ConnectError, RetryError
from orderchain.simulation.memory_log import MemoryFrameSink
from orderchain.simulation.wire import WireBroken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.simulation.memory_log import MemoryLog
    from orderchain.simulation.wire import Wire


class WiredFrameSink:
    """Implements `orderchain.ports.FrameSink`. What was given up may be stored, late, all the same.

    The topic comes from the broker's `log`, whatever name and partition are asked for.
    """

    def __init__(self, log: MemoryLog, wire: Wire) -> None:
        self._sink = MemoryFrameSink(log)
        self._wire = wire

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that the topic takes, as it was last read."""
        return self._sink.frame_bytes_max

    async def start(self, topic: str, partition: int) -> None:
        """Connect; see `orderchain.ports.FrameSink.start`."""
        try:
            await self._wire.call(lambda: self._sink.start(topic, partition))
        except WireBroken as error:
            expected = "a broker that answers"
            raise ConnectError("kafka", self._wire.server.name, expected) from error

    async def last_records(self, topic: str, partition: int, at_most: int) -> list[bytes | None]:
        """Return what the log ends with; see `orderchain.ports.FrameSink.last_records`."""
        try:
            return await self._wire.call(lambda: self._sink.last_records(topic, partition, at_most))
        except WireBroken as error:
            raise RetryError(f"last records: {error}") from error

    async def send(self, frames: Sequence[bytes]) -> None:
        """Store `frames`, or not, or later; see `orderchain.ports.FrameSink.send`."""
        try:
            await self._wire.call(lambda: self._sink.send(frames))
        except WireBroken as error:
            raise RetryError(f"send: {error}") from error

    async def close(self) -> None:
        """Nothing is held."""
