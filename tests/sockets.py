"""Which sockets this process holds: what was refused has to leave none behind."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.deadlines import deadline


def open_sockets() -> set[str]:
    """Return the sockets of this process, by the numbers that the kernel gave them."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # of a file that was closed since
            found.add(os.readlink(path))  # noqa: PTH115 - it leads to no file
    return {target for target in found if target.startswith("socket:")}


@asynccontextmanager
async def no_socket_left() -> AsyncIterator[None]:
    """Hold a block, and wait until every socket that it opened is closed.

    TLS says goodbye on both sides, so that a socket is closed a moment after its connection.
    """
    before = open_sockets()
    try:
        yield
    finally:
        async with deadline():
            # The loop that closes them has to run: there is no event to wait for.
            while open_sockets() - before:  # noqa: ASYNC110
                await asyncio.sleep(0)
