"""A real PgBouncer before a real PostgreSQL, pooling by transaction."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from local_stack.process import free_port
from tests.deadlines import deadline


def as_anybody(program: str, settings: Path) -> list[str]:
    """PgBouncer refuses to run as root, and root hands it to `nobody`."""
    return [program, *(["-u", "nobody"] if os.getuid() == 0 else []), str(settings)]


@asynccontextmanager
async def pgbouncer(dsn: str, folder: Path, *, ignores: str = "") -> AsyncIterator[str]:
    """Serve the database of `dsn` through a pooler; yields the URL that leads through it.

    Two servers for all clients, so that a client meets another one's session. `ignores` are the
    start-up parameters that it passes over; it refuses all others that it does not know.
    """
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("no PgBouncer (Debian: apt-get install pgbouncer)")
    parts = urlsplit(dsn)
    port = free_port()
    users = folder / "users.txt"
    users.write_text(f'"{parts.username}" "{parts.password or ""}"\n')
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"""[databases]
* = host={parts.hostname} port={parts.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {users}
pool_mode = transaction
default_pool_size = 2
ignore_startup_parameters = {ignores or "extra_float_digits"}
"""
    )
    process = await asyncio.create_subprocess_exec(
        *as_anybody(program, settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    shown = b""
    try:
        async with deadline():
            assert process.stdout is not None
            async for line in process.stdout:
                shown += line
                if b"process up" in line:
                    break
            else:
                raise AssertionError(shown.decode())
        reading = asyncio.create_task(process.stdout.read())
        host = f"{parts.username}:{parts.password}@127.0.0.1:{port}"
        yield urlunsplit((parts.scheme, host, parts.path, "sslmode=disable", ""))
        process.kill()
        await reading
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
