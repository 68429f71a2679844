"""An intake's view of a topic of orders at the end of a wire."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from orderchain.errors import ConnectError, RetryError
from orderchain.simulation.process import check_alive
from orderchain.simulation.wire import WireBroken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orderchain.ports import SourceRecord
    from orderchain.simulation.memory_topic import MemoryTopic
    from orderchain.simulation.wire import Wire


class WiredRecordSource:
    """Implements `orderchain.ports.RecordSource`: questions take their time, and may get lost.

    Its place moves with the answer: a question that is obeyed too late moves nothing.
    """

    def __init__(self, topic: MemoryTopic, wire: Wire) -> None:
        self._topic = topic
        self._wire = wire
        self._offsets: dict[int, int] = {}

    async def open(self) -> dict[int, tuple[int, int]]:
        """Return the bounds; see `orderchain.ports.RecordSource.open`."""

        async def look() -> dict[int, tuple[int, int]]:
            if self._topic.is_away:
                raise ConnectError("kafka", "memory", "a broker that answers")
            topic = self._topic
            return {number: (topic.first[number], topic.end[number]) for number in topic.logs}

        try:
            return await self._wire.call(look)
        except WireBroken as error:
            expected = "a broker that answers"
            raise ConnectError("kafka", self._wire.server.name, expected) from error

    async def seek(self, offsets: Mapping[int, int]) -> None:
        """Go to `offsets`; see `orderchain.ports.RecordSource.seek`."""
        check_alive()
        self._offsets = dict(offsets)

    async def records(
        self, at_most: int, timeout_seconds: float
    ) -> dict[int, tuple[Sequence[SourceRecord], int]]:
        """Return the next records; see `orderchain.ports.RecordSource.records`."""
        check_alive()
        if self._offsets == self._topic.end:
            self._topic.grown.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._topic.grown.wait()
        offsets = dict(self._offsets)

        async def read() -> dict[int, tuple[Sequence[SourceRecord], int]]:
            return self._topic.read(offsets, at_most)

        try:
            found = await self._wire.call(read)
        except WireBroken as error:
            raise RetryError(str(error)) from error
        self._offsets.update((number, next_offset) for number, (_, next_offset) in found.items())
        return found

    async def close(self) -> None:
        """Nothing is held."""
