"""A server that takes connections and says nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class _Silence(asyncio.Protocol):
    def __init__(self, connections: list[_Silence]) -> None:
        connections.append(self)
        self._is_lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost.set()

    async def end(self) -> None:
        self._transport.abort()
        await self._is_lost.wait()


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Hold such a server on loopback, and give its port."""
    connections: list[_Silence] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Silence(connections), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
        for connection in connections:
            await connection.end()
