"""Frames from a broker that need not be there: its start is retried for as long as it takes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from orderchain.backoff import Backoff
from orderchain.errors import ConnectError, OrderchainError, RetryError

if TYPE_CHECKING:
    from random import Random

    from orderchain.ports import FrameSource


_log = logging.getLogger(__name__)

_PAUSE_SECONDS_MAX: Final = 1.0
"""Pause between two tries to start. Rows come from the database meanwhile: there is no hurry."""


class OptionalFrames:
    """A `FrameSource` that is away until the one that it wraps has been started.

    If it is started late, it is at the live end of that moment. What was published before is in the
    database, where the receiver looks while it has no frames, and after that the pids show a gap.
    """

    def __init__(
        self, frames: FrameSource, start_seconds: float, random: Random | None = None
    ) -> None:
        self._frames = frames
        self._start_seconds = start_seconds
        self._backoff = Backoff(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS_MAX, random=random)
        self._starting: asyncio.Task[None] | None = None

    @property
    def place(self) -> tuple[str, int] | None:
        """Topic and partition; see `orderchain.ports.FrameSource.place`."""
        return self._frames.place

    async def start(self) -> None:
        """Go to the live end if the broker answers soon. Raises TopicError."""
        self._starting = asyncio.create_task(self._start(), name="orderchain broker start")
        await self._wait(self._starting, self._start_seconds)

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the next records; see `orderchain.ports.FrameSource.records`.

        Raises TopicError, too, once the broker is there and the topic is unsuitable.
        """
        starting = self._starting
        if starting is not None and not await self._wait(starting, timeout_seconds):
            raise RetryError("the broker has not answered yet")
        self._starting = None
        return await self._frames.records(timeout_seconds)

    async def close(self) -> None:
        """Close; see `orderchain.ports.FrameSource.close`."""
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            with suppress(asyncio.CancelledError, OrderchainError):
                await starting
        await self._frames.close()

    async def _start(self) -> None:
        """Start, however long that takes."""
        while True:
            try:
                await self._frames.start()
            except (ConnectError, RetryError) as error:
                _log.warning("%s; rows come from the database until it is there", error)
                await asyncio.sleep(self._backoff.next_seconds())
            else:
                return

    @staticmethod
    async def _wait(starting: asyncio.Task[None], seconds: float) -> bool:
        """Wait up to `seconds` for the start; return whether it is done. Raises what ended it."""
        await asyncio.wait([starting], timeout=seconds)
        if not starting.done():
            return False
        starting.result()
        return True
