"""A server that takes connections and never says a word."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Give the port of a silent server on loopback; every connection is closed at the end."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(
        lambda _reader, writer: writers.append(writer), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # the transports close at the loop's next turn
        await server.wait_closed()
