"""A write that follows behind the delivery: it never makes a receiver wait."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from matcher_receiver.kit import AWAY
from orderchain.backoff import Backoff
from orderchain.errors import OrderchainError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

_AGAIN_SECONDS_MAX: Final = 2.0
"""After a write that failed because the database is away."""


class WriteBehind:
    """Writes again and again for as long as something waits, in a task that ends when nothing does.

    Once the database refuses a write for good, none is tried again. On the way out one more write
    is tried, within the deadline.
    """

    def __init__(
        self,
        what: str,
        *,
        waits: Callable[[], bool],
        write: Callable[[], Awaitable[None]],
        gather_seconds: float = 0.0,
        pause_seconds: float = 0.0,
    ) -> None:
        self._what = what
        self._waits = waits
        self._write_once = write
        self._gather_seconds = gather_seconds
        self._pause_seconds = pause_seconds
        self._backoff = Backoff(_AGAIN_SECONDS_MAX, _AGAIN_SECONDS_MAX)
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.is_refused = False
        """Whether the database has refused a write for good."""

    def wake(self) -> None:
        """See to it that what waits is written; never waits, never raises."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name=f"orderchain {self._what}")

    async def close(self, seconds: float) -> None:
        """Write what waits, within `seconds`, twice that at most; never raises."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _write(self) -> None:
        while self._waits() and not self.is_refused:
            await self._rest(self._gather_seconds)
            try:
                await self._write_once()
            except AWAY as error:
                _log.warning("%s, again: %s", self._what, error)
                if self._closing.is_set():
                    return
                await self._rest(self._backoff.next_seconds())
            except OrderchainError as error:
                self.is_refused = True
                _log.error("no %s: %s", self._what, error)
            else:
                await self._rest(self._pause_seconds)

    async def _rest(self, seconds: float) -> None:
        """Wait, unless it is time to end."""
        if seconds:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closing.wait()
