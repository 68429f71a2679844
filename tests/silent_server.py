"""A server that takes connections and says nothing, or always the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast


class _Silence(asyncio.Protocol):
    def __init__(self, connections: list[_Silence], answer: bytes) -> None:
        connections.append(self)
        self._answer = answer
        self._is_lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answer:
            self._transport.write(self._answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost.set()

    async def end(self) -> None:
        self._transport.abort()
        await self._is_lost.wait()


@asynccontextmanager
async def silent_server(
    answer: bytes = b"", *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[int]:
    """Hold such a server on loopback, and give its port."""
    connections: list[_Silence] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Silence(connections, answer), host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
        for connection in connections:
            await connection.end()
