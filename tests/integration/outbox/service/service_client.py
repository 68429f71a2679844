"""Raw HTTP to an instance of the message service, and instances in processes of their own."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp

from chain_kernel.clients.http_server import HttpLimits, HttpServer
from outbox.sender.check_back import CheckingConfig
from outbox.sender.due_decisions import CheckRules
from outbox.service.config import Client, ServiceConfig, hash_token
from tests.deadlines import deadline, in_time
from tests.pipes import send_to_child

from ..conftest import Sender

TOKEN = "payments-token"
SERVED = b"messages are served at "


def client(name: str, **settings: Any) -> Client:
    """A client whose token is its name and `-token`."""
    given = {"destinations": ("*",), "consumers": ("*",), **settings}
    return Client(name=name, token_sha256=(hash_token(f"{name}-token").hex(),), **given)


def service_config(sender: Sender, **settings: Any) -> ServiceConfig:
    checking = CheckingConfig(rules=CheckRules(first_seconds=3_600.0))
    return ServiceConfig(**{"relay": sender.config(), "port": 0, "checking": checking, **settings})


@asynccontextmanager
async def endpoint(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an application on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = HttpServer(app, HttpLimits(connections_max=100))
        task = asyncio.create_task(server.serve(listening))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.stop()
        await task


async def raw(
    address: str,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    token: str | None = TOKEN,
    content_type: str = "application/json",
    headers: str = "",
) -> tuple[int, dict[str, str], Any]:
    """Send bytes as they are; return status, headers, and the JSON of the body."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    async with deadline():
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}"
        if "content-length" not in headers.lower():
            head += f"Content-Length: {len(body)}\r\n"
        if content_type:
            head += f"Content-Type: {content_type}\r\n"
        if token is not None:
            head += f"Authorization: Bearer {token}\r\n"
        writer.write(f"{head}\r\n".encode() + body)
        answered = await reader.read()
        writer.close()
        await writer.wait_closed()
    shown, _, content = answered.partition(b"\r\n\r\n")
    status, *lines = shown.decode().split("\r\n")
    found = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    return int(status.split()[1]), found, msgspec.json.decode(content) if content else None


class Instance:
    """`chainctl messages serve` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    async def kill(self) -> None:
        """kill -9. Killed already, it is waited for."""
        send_to_child(self.process, signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def served(
    database: str, kafka: str, clients: Path, *options: str
) -> AsyncIterator[Instance]:
    """Run an instance; it is stopped by SIGTERM at the end, unless it was killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "chainctl", "messages", "serve", "--clients", str(clients),
        "--port", "0", *options,
        env={**os.environ, "CHAINCTL_DATABASE": database, "CHAINCTL_KAFKA": kafka},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Instance(process, await _address(process))
    finally:
        if process.returncode is None:
            process.terminate()
            await in_time(process.communicate())
        else:
            await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    shown = b""
    async with deadline():
        async for line in process.stderr:
            shown += line
            if SERVED in line:
                return line.partition(SERVED)[2].decode().strip()
    raise AssertionError(f"the service has ended: {shown.decode()}")


def write_clients(path: Path, *clients: Client) -> Path:
    """Write the file of clients, as TOML."""
    lines = []
    for each in clients:
        lines.append("[[client]]")
        for name, value in msgspec.to_builtins(each).items():
            lines.append(f"{name} = {msgspec.json.encode(value).decode()}")
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return path
