"""A server that answers whatever it is asked to, for tests of HTTP clients."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def answering(
    *parts: bytes, hangs: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers every request with these bytes; what it was sent is kept."""
    seen: list[bytes] = []
    ended = asyncio.Event()
    served: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # At once: a caller may have given up before the first step of a task.
        served.add(asyncio.create_task(serve(reader, writer)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        seen.append(head + await reader.readexactly(length))
        for part in parts:
            writer.write(part)
        if hangs:
            await ended.wait()

    server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    try:
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        ended.set()
        server.close()
        await server.wait_closed()
        # Before Python 3.12 that waits for no connection, and a loop that ends leaves it open.
        await asyncio.gather(*served, return_exceptions=True)
