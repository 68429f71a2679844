"""Asks whether a broker serves requests, over a connection that is closed whatever comes.

A client of the library would do, but one that is given up in the midst of its start leaves its
connection open.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import Final

_CLIENT: Final = b"orderchain-probe"
# Metadata in version 1, without a topic. A broker that starts accepts connections before it is of
# use to anybody; this it answers with the brokers that it knows, itself among them once it is.
_REQUEST: Final = struct.pack(f">hhih{len(_CLIENT)}si", 3, 1, 7, len(_CLIENT), _CLIENT, 0)
_DEFAULT_PORT: Final = 9092


async def is_broker_there(bootstrap_servers: str, seconds: float) -> bool:
    """Say whether one of the servers, `host:port[,host:port]`, answers within `seconds` each."""
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(seconds):
                if await _answers(host or server.strip(), int(port or _DEFAULT_PORT)):
                    return True
    return False


async def _answers(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host.strip("[]"), port)
    try:
        writer.write(struct.pack(">i", len(_REQUEST)) + _REQUEST)
        # Size, our correlation id again, how many brokers there are.
        _, correlation_id, brokers = struct.unpack(">iii", await reader.readexactly(12))
        return bool(correlation_id == 7 and brokers > 0)
    finally:
        writer.transport.abort()
