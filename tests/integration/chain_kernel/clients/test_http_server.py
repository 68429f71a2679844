"""HTTP/1.1 as the commands and services speak it: on real sockets, with clients that misbehave."""

import asyncio
import gc
import resource
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from chain_kernel.clients.http_server import HttpLimits, HttpServer, connections_max
from tests.deadlines import deadline, until

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
LARGE = bytes(10_000_000)
GET = b"GET /%s HTTP/1.1\r\nHost: here\r\n\r\n"


class Echo:
    """Answers with the path and the body; `hold` lets it wait, `bad` makes it fail."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path == "/bad":
            raise KeyError(path)
        if path == "/hold":
            self.begun.set()
            await self.let_go.wait()
        body, more = b"", scope["method"] == "POST"
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        content = LARGE if path == "/large" else path.encode() + body
        value = b"a\r\nb: c" if path == "/split" else b"%d" % len(content)
        start = {"status": 200, "headers": [(b"content-length", value)]}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": content})


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[tuple[HttpServer, Echo, int]]:
    echo = Echo()
    server = HttpServer(echo, HttpLimits(**{"connections_max": 100, **limits}))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        task = asyncio.create_task(server.serve(listening))
        async with deadline():
            yield server, echo, port
            server.stop()
            await task
        assert not server.connections
        assert not server.waiting


@asynccontextmanager
async def connected(
    port: int, sent: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()


async def answers(port: int, sent: bytes) -> bytes:
    """Send, and return all that is answered until the connection has its end, in good order."""
    async with connected(port, sent) as (reader, _):
        return await reader.read()


async def test_requests_of_one_connection_are_answered_in_their_order() -> None:
    body = b"POST /b%20 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz"
    last = b"HEAD /c HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    async with serving() as (_, _, port):
        found = await answers(port, GET % b"a" + body + last)
    parts = found.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [part.partition(b"\r\n\r\n")[2] for part in parts] == [b"/a", b"/b xyz", b""]
    assert b"content-length: 2\r\nconnection: close" in parts[-1]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /a HTTP/1.1\r\nHost: h\r\n" + CHUNKED, 411),
        (b"GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1_0\r\n\r\n", 400),
        (
            GET[:-2] % b"a" + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 40_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (GET % b"bad", 500),
        (GET % b"split", 500),
    ],
)
async def test_what_is_refused_is_answered_once_and_ends_the_connection(
    sent: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (_, _, port):
        found = await answers(port, sent + GET % b"next")
    assert found.startswith(b"HTTP/1.1 %d " % status)
    assert found.count(b"HTTP/1.1 ") == 1
    assert (status == 500) == ("a request has failed" in caplog.text)


async def test_requests_that_one_connection_sends_ahead_take_no_memory() -> None:
    count, held = 100_000, [0]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        held.append(max(len(getattr(each, "_received", b"")) for each in server.connections))
        await echo(scope, receive, send)

    async with serving() as (server, echo, port):
        server.app = app
        async with connected(port) as (reader, writer):

            async def send_ahead() -> None:
                for _ in range(count // 1_000):
                    writer.write(GET % b"a" * 1_000)
                    await writer.drain()

            sending = asyncio.create_task(send_ahead())
            answered = 0
            while answered < 20_000:
                answered += (await reader.read(2**16)).count(b"HTTP/1.1 200")
            sending.cancel()
    assert max(held) < 2**20, "one read more than a piece, at most"


async def test_large_answer_is_not_copied_for_each_client_that_does_not_read() -> None:
    tracemalloc.start()
    try:
        async with serving(write_seconds=600.0) as (server, _, port):
            with ExitStack() as stack:
                for _ in range(30):
                    silent = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    silent.sendall(GET % b"large")
                await until(lambda: len(server.connections) >= 30)
                await until(
                    lambda: all(
                        hasattr(each, "_taken") and not each._taken.is_set()
                        for each in server.connections
                    )
                )
                held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * len(LARGE)


async def test_answer_that_is_not_read_holds_no_connection() -> None:
    async with serving(write_seconds=0.2) as (server, _, port):
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.sendall(GET % b"large")
            await until(lambda: server.connections)
            await until(lambda: not server.connections)
        assert not server.waiting


@pytest.mark.parametrize("limit", ["body_seconds", "connection_seconds"])
async def test_body_that_trickles_in_has_an_end(limit: str) -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"
    async with (
        serving(**{limit: 0.2}) as (server, _, port),
        connected(port, head) as (reader, writer),
    ):
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0)
        assert await _rest(reader) == b""
        assert not server.connections


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """Read to the end, which is a reset where something was not read."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_connections_leave_descriptors_for_all_else() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for soft, expected in ((1_024, 896), (100, 16)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
            assert connections_max() == expected
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET", GET % b"large", b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx"],
)
async def test_client_that_is_waited_for_longest_makes_room(sent: bytes) -> None:
    async with serving(connections_max=4) as (server, _, port), AsyncExitStack() as others:
        for _ in range(9):
            await others.enter_async_context(connected(port, sent))
        asked = GET.replace(b"here", b"h\r\nConnection: close") % b"a"
        assert (await answers(port, asked)).endswith(b"/a")
        assert len(server.connections) <= 4


async def test_last_place_is_kept_for_one_whose_request_comes_a_moment_later() -> None:
    async with serving(connections_max=2) as (_, echo, port), connected(port, GET % b"hold"):
        await echo.begun.wait()
        async with connected(port) as (reader, writer):
            for _ in range(20):  # it was accepted, and another one was looked for
                await asyncio.sleep(0)
            writer.write(GET.replace(b"here", b"h\r\nConnection: close") % b"a")
            assert (await reader.read()).endswith(b"/a")
        echo.let_go.set()


async def test_crowd_closes_no_connection_whose_request_was_not_read() -> None:
    asked = GET.replace(b"here", b"h\r\nConnection: close") % b"a"
    async with serving(connections_max=20) as (_, _, port):
        with ExitStack() as crowd:
            # All of them are there before the server has a turn.
            first, *_ = [
                crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
                for _ in range(100)
            ]
            first.sendall(asked)
            first.setblocking(False)
            found = await asyncio.get_running_loop().sock_recv(first, 1_000)
    assert found.endswith(b"/a")


async def test_stop_answers_requests_under_way_and_closes_what_idles() -> None:
    async with serving() as (server, echo, port), connected(port) as (idle, _):
        asked = asyncio.create_task(answers(port, GET % b"hold"))
        await echo.begun.wait()
        server.stop()
        assert await idle.read() == b""
        echo.let_go.set()
        assert (await asked).endswith(b"/hold")


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (GET % b"hold", b"/hold"),
        (b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz", b"/bxyz"),
        (b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxy", b""),
        (b"GET /a HTTP/1.1\r\n", b""),
    ],
)
async def test_client_that_sends_nothing_more_is_answered(sent: bytes, answer: bytes) -> None:
    async with serving() as (_, echo, port), connected(port, sent) as (reader, writer):
        writer.write_eof()
        if answer == b"/hold":
            await echo.begun.wait()
            echo.let_go.set()
        assert (await _rest(reader)).endswith(answer)


@pytest.mark.parametrize("turns", range(4))
async def test_connection_that_is_accepted_at_the_end_is_closed(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(Echo(), HttpLimits(connections_max=5))
    serving = asyncio.create_task(server.serve(listening))
    await asyncio.sleep(0)
    with socket.socket() as client:
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.connect(listening.getsockname())
        for _ in range(turns):
            await asyncio.sleep(0)
        server.stop()
        await serving
        lost: list[object] = []
        monkeypatch.setattr("sys.unraisablehook", lost.append)
        gc.collect()  # a socket that is lost warns
        assert not lost
