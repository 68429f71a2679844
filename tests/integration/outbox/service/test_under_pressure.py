"""The message service among clients that are slow, greedy, or no clients at all."""

import asyncio
import base64
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec
import pytest
from starlette.responses import Response

import outbox
from chain_kernel.clients.http_server import HttpLimits
from outbox.service import server
from outbox.service.config import Clients
from outbox.service.server import MessageService
from tests.deadlines import until

from ..conftest import Sender
from .service_client import client, raw, service_config

SEND = "/v1/messages/send"
MESSAGE = {"destination": "clearing", "key": "7", "payload": base64.b64encode(b"pay 7").decode()}
GREEDY = ("a", "b", "c", "d")
BODY = msgspec.json.encode({"messages": [MESSAGE]})


@asynccontextmanager
async def running(sender: Sender, **settings: Any) -> AsyncIterator[MessageService]:
    clients = Clients([client(name) for name in ("payments", "shop", *GREEDY)])
    async with MessageService(service_config(sender, **settings), clients) as service:
        yield service


class Wire:
    """A connection on which bytes are written as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def write(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """Read all until the end of the connection; return the first answer."""
        shown = bytearray()
        # A server that closes on what it has not read ends the connection by a reset.
        with suppress(ConnectionResetError):
            while part := await self.reader.read(65_536):
                shown += part
        head, _, body = shown.partition(b"\r\n\r\n")
        return int(head.split()[1]), msgspec.json.decode(body)


@asynccontextmanager
async def wire(service: MessageService) -> AsyncIterator[Wire]:
    host, _, port = service.address.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def begun(name: str, length: int) -> bytes:
    """The header of a request, and the first byte of its body."""
    return (
        f"POST {SEND} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {name}-token\r\nContent-Length: {length}\r\n\r\n"
    ).encode() + b"{"


async def test_unfinished_bodies_take_no_more_memory_than_set_and_shut_nobody_out(
    sender: Sender,
) -> None:
    await sender.set_up(confirm="none")
    sizes = {"body_bytes_max": 40_000, "bodies_bytes_max": 60_000}
    async with running(sender, **sizes) as service, AsyncExitStack() as wires:
        for count in (10, 38_000):
            each = await wires.enter_async_context(wire(service))
            await each.write(begun("payments", 39_000) + b" " * (count - 1))
        await until(lambda: service.app.body_bytes >= 38_010)
        large = BODY + b" " * 30_000
        status, headers, noted = await raw(service.address, "POST", SEND, large, token="shop-token")
        assert (status, noted["error"], headers["connection"]) == (503, "unavailable", "close")
        assert (await raw(service.address, "POST", SEND, BODY, token="shop-token"))[0] == 200
    assert service.app.body_bytes == 0


async def test_half_sent_bodies_of_four_clients_shut_out_no_other(sender: Sender) -> None:
    await sender.set_up(confirm="none")
    async with running(sender) as service, AsyncExitStack() as wires:
        for name in GREEDY * 50:
            each = await wires.enter_async_context(wire(service))
            await each.write(begun(name, 1_000))
        await until(lambda: service.app.body_bytes >= 4 * 50)
        for _ in range(40):
            assert (await raw(service.address, "POST", SEND, BODY, token="shop-token"))[0] == 200
        assert (await raw(service.address, "GET", "/livez"))[0] == 200


async def test_body_that_trickles_in_after_its_refusal_does_not_hold_the_connection(
    sender: Sender,
) -> None:
    async with running(sender) as service, wire(service) as slow:
        await slow.write(begun("nobody", 1_000_000))
        trickle = asyncio.create_task(_trickle(slow))
        assert (await slow.answer())[0] == 401
        trickle.cancel()


@pytest.mark.parametrize("sent", [b"", b"POST /v1/messages/send HTTP/1.1\r\nHost: h"])
async def test_connection_that_never_asks_is_ended(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server, "HttpLimits", partial(HttpLimits, head_seconds=0.3))
    async with running(sender) as service, wire(service) as slow:
        await slow.write(sent)
        if not sent:
            assert await slow.reader.read() == b""
            return
        trickle = asyncio.create_task(_trickle(slow))
        status, shown = await slow.answer()
        trickle.cancel()
        assert (status, shown["error"]) == (408, "too_slow")


async def _trickle(slow: Wire) -> None:
    while True:
        await slow.write(b"x")
        await asyncio.sleep(0.05)


async def test_relay_sends_while_the_thread_of_http_hangs(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = await sender.set_up(confirm="none")
    hangs, let_go = threading.Event(), threading.Event()

    def hang(*_: object) -> Response:
        hangs.set()
        let_go.wait()
        return Response()

    async with running(sender) as service, wire(service) as one:
        monkeypatch.setattr("outbox.service.app.refused", hang)
        await one.write(b"GET /v1/messages HTTP/1.1\r\nHost: here\r\n\r\n")
        try:
            await asyncio.to_thread(hangs.wait)
            business = await sender.connect()
            async with business.transaction():
                message_id = await outbox.add(business, "clearing", b"x")
            await service.relay.sweep()
            await service.relay.settle()
            assert await sender.sent(destination) == [message_id]
        finally:
            let_go.set()


async def test_two_authorizations_are_refused(sender: Sender) -> None:
    async with running(sender) as service:
        status, _, shown = await raw(
            service.address, "POST", SEND, BODY, headers="Authorization: Bearer shop-token\r\n"
        )
        assert (status, shown["field"], shown["expected"]) == (400, "Authorization", "one")


async def test_method_that_a_path_has_not_is_405_with_those_that_it_has(sender: Sender) -> None:
    async with running(sender) as service:
        for method, path, allow in (
            ("GET", SEND, {"POST"}),
            ("BREW", SEND, {"POST"}),
            ("POST", "/v1/messages", {"GET", "HEAD"}),
            ("PUT", "/v1/messages/0197c0de-0000-7000-8000-000000000000", {"GET", "HEAD"}),
            ("POST", "/livez", {"GET", "HEAD"}),
        ):
            status, headers, shown = await raw(service.address, method, path)
            assert (status, shown["error"]) == (405, "unknown_method")
            assert set(headers["allow"].split(", ")) == allow


async def test_defect_of_the_service_is_json_too(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(sender) as service:

        async def broken(*_: object) -> None:
            raise KeyError("x")

        monkeypatch.setattr(service._api, "get", broken)
        path = "/v1/messages/0197c0de-0000-7000-8000-000000000000"
        status, headers, shown = await raw(service.address, "GET", path)
        assert (status, headers["content-type"]) == (500, "application/json")
        assert shown["error"] == "failed"
