"""Message service and console as they run in production: with the shipped proxy before them."""

import asyncio
import os
import re
import shutil
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from outbox.service.config import Clients
from outbox.service.server import MessageService
from tests.certificates import Authority
from tests.deadlines import deadline, in_time

from ..conftest import Sender
from .service_client import client, service_config
from .test_under_pressure import BODY, SEND, begun

PROGRAM = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
SHIPPED = Path(__file__).parents[4] / "deploy/proxy/nginx.conf"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(PROGRAM is None, reason="no nginx (Debian: apt-get install nginx-light)"),
]


@asynccontextmanager
async def proxied(
    folder: Path, authority: Authority, port: int, console: int = 0
) -> AsyncIterator[int]:
    """The shipped proxy on a free port, as it is but for addresses and paths."""
    files, own = authority.server("127.0.0.1"), free_port()
    text = SHIPPED.read_text()
    for was, now in (
        ("/etc/orderchain/proxy.pem", str(files.certificate)),
        ("/etc/orderchain/proxy.key", str(files.key)),
        ("/run/orderchain-nginx.pid", str(folder / "pid")),
        ("127.0.0.1:8085", f"127.0.0.1:{port}"),
        ("127.0.0.1:8086", f"127.0.0.1:{console or free_port()}"),
        ("listen 8443", f"listen 127.0.0.1:{own}"),
        # It may be root who tests, whose folder others can not read.
        ("worker_processes auto;", "worker_processes 1; daemon off; user root;"),
    ):
        assert was in text
        text = text.replace(was, now)
    for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
        text = text.replace("http {", f"http {{\n  {each}_temp_path {folder}/{each};", 1)
    path = folder / "nginx.conf"
    path.write_text(text)
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM), "-p", str(folder), "-e", str(folder / "log"), "-c", str(path)
    )
    try:
        async with deadline():
            while not _listens(own):
                assert process.returncode is None, (folder / "log").read_text()
                await asyncio.sleep(0.05)
        yield own
    finally:
        process.terminate()
        await in_time(process.wait())


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


async def test_service_is_reached_through_the_shipped_proxy_and_strangers_stay_before_it(
    sender: Sender, tmp_path: Path
) -> None:
    await sender.set_up(confirm="none")
    authority = Authority(tmp_path)
    trust = ssl.create_default_context(cafile=str(authority.path))
    clients = Clients([client("payments")])
    async with (
        MessageService(service_config(sender), clients) as service,
        proxied(tmp_path, authority, int(service.address.rpartition(":")[2])) as port,
        httpx.AsyncClient(verify=trust, base_url=f"https://127.0.0.1:{port}") as web,
        AsyncExitStack() as strangers,
    ):
        for sent in (b"", b"GET / HT", begun("payments", 1_000)):
            for _ in range(25):
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
                strangers.callback(writer.close)
                writer.write(sent)
        headers = {
            "Authorization": "Bearer payments-token",
            "Content-Type": "application/json",
        }

        async def in_chunks() -> AsyncIterator[bytes]:
            for number in range(len(BODY)):
                yield BODY[number : number + 1]

        for _ in range(3):
            for content in (BODY, in_chunks()):
                answer = await web.post(SEND, content=content, headers=headers)
                assert answer.status_code == 200, answer.text
        assert service.app.body_bytes == 0, "a body waits in the proxy until it is whole"
        large = await web.post(SEND, content=bytes(9 * 2**20), headers=headers)
        assert large.status_code == 413
        long = await web.get("/livez", headers={"X": "x" * 40_000})
        assert long.status_code == 400
        assert (await web.get("/livez")).json() == {"status": "alive"}
    assert not re.findall(r"\[(emerg|alert|crit)\]", (tmp_path / "log").read_text())


CONSOLE = re.compile(
    rb"console is at http://127\.0\.0\.1:(\d+)/.*need this token: (\S+)", re.DOTALL
)


@asynccontextmanager
async def served_console(database: str) -> AsyncIterator[tuple[int, str]]:
    """A console on loopback: its port and its token."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chainctl", "console", "--port", "0"),
        env={**os.environ, "CHAINCTL_DATABASE": database},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    shown = b""
    try:
        async with deadline():
            while (found := CONSOLE.search(shown)) is None:
                line = await process.stderr.readline()
                assert line, shown.decode()
                shown += line
        yield int(found[1]), found[2].decode()
    finally:
        process.terminate()
        await in_time(process.communicate())


async def test_console_is_read_through_the_shipped_proxy_with_its_token_alone(
    sender: Sender, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    trust = ssl.create_default_context(cafile=str(authority.path))
    async with (
        served_console(sender.dsns[SUPERUSER]) as (port, token),
        proxied(tmp_path, authority, free_port(), port) as own,
        httpx.AsyncClient(verify=trust, base_url=f"https://127.0.0.1:{own}") as web,
        deadline(),
    ):
        named = {"Host": "console.example"}
        for path in ("/", "/api/state", "/events", "/report"):
            assert (await web.get(path, headers=named)).status_code == 401, path
        state = await web.get("/api/state", headers=named, auth=("", token))
        assert state.status_code == 200
        assert "outbox" in state.json()
        async with web.stream("GET", "/events", headers=named, auth=("", token)) as events:
            assert await anext(events.aiter_lines()) == "event: state"
