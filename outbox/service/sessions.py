"""The database connections that requests share."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from outbox.session import OutboxSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outbox.relay_config import RelayConfig


class Sessions:
    """A few connections, opened when needed; whoever finds none free waits its turn."""

    def __init__(self, config: RelayConfig, count: int) -> None:
        self._all = [OutboxSession(config, f"service {number}") for number in range(count)]
        # Last in, first out: under little load few connections are open.
        self._free: asyncio.LifoQueue[OutboxSession] = asyncio.LifoQueue()
        for session in reversed(self._all):
            self._free.put_nowait(session)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[OutboxSession]:
        """Hold a session alone."""
        session = await self._free.get()
        try:
            yield session
        finally:
            self._free.put_nowait(session)

    async def close(self) -> None:
        """Close them; never raises."""
        for session in self._all:
            await session.close()
