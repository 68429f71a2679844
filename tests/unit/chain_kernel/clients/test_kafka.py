"""What a client does while it stops is its affair; its connections are closed all the same."""

import asyncio
import gc
import weakref
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.protocol.produce import ProduceRequest

from chain_kernel.clients.kafka import close_client, copy_records_once, end_client, start_client
from tests.deadlines import deadline


class Connection:
    _protocol = None  # as before it is made

    def __init__(self) -> None:
        self.is_open = True
        self.closed = asyncio.Event()

    def close(self) -> None:
        self.is_open = False
        self.closed.set()


class Connections:
    """What aiokafka calls the client of a client."""

    def __init__(self, connection: Connection) -> None:
        self._conns = {"any": connection}
        self.cluster = ClusterMetadata()
        self._sync_task = asyncio.ensure_future(asyncio.Event().wait())


class Client:
    """A client whose stop does what the test says."""

    def __init__(self, stop: Any = None) -> None:
        self.connection = Connection()
        self._client = Connections(self.connection)
        self._stop = stop
        self.has_stopped = False

    async def stop(self) -> None:
        if self._stop is not None:
            await self._stop(self)
        self.has_stopped = True


async def _fail(_: Client) -> None:
    raise ValueError("a stop that fails")


async def _cancel(_: Client) -> None:
    raise asyncio.CancelledError


async def _hang(client: Client) -> None:
    await client.connection.closed.wait()  # as a request does, whose answer never comes


async def _hang_for_good(_: Client) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("stop", [None, _fail, _cancel])
async def test_connection_is_closed_whatever_the_stop_raises(stop: Any) -> None:
    client = Client(stop)
    await close_client(client, 5)
    assert not client.connection.is_open


async def test_overdue_stop_loses_its_connection_and_comes_to_its_end() -> None:
    client = Client(_hang)
    await close_client(client, 0.01)
    assert client.has_stopped


async def test_stop_that_nothing_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chain_kernel.clients.kafka._GRACE_SECONDS", 0.01)
    client = Client(_hang_for_good)
    async with deadline():
        await close_client(client, 0.01)
    assert not client.connection.is_open
    assert not client.has_stopped


@pytest.mark.parametrize("close", [end_client, lambda client: close_client(client, 60)])
async def test_cancellation_closes_the_connection_and_is_raised(close: Any) -> None:
    client = Client(_hang)
    closing = asyncio.ensure_future(close(client))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not client.connection.is_open


async def test_start_comes_to_its_end_before_a_cancellation_is_raised() -> None:
    ended: list[str] = []

    class Slow:
        async def start(self) -> None:
            await asyncio.sleep(0.01)
            ended.append("started")

    starting = asyncio.ensure_future(start_client(Slow()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert ended == ["started"]


@pytest.mark.parametrize("version", range(8))
@pytest.mark.parametrize(
    "topics",
    [
        [("orders", [(0, bytearray(b"records"))])],
        [("orders", [(3, b"")])],
        [("orders", [(0, b"records"), (1, b"others")])],
        [("orders", [(0, b"records")]), ("trades", [(0, b"others")])],
    ],
)
def test_request_is_laid_out_as_by_the_library(version: int, topics: list[Any]) -> None:
    client = SendingClient()
    copy_records_once(client)
    given = {"transactional_id": None, "required_acks": -1, "timeout": 9_000, "topics": topics}
    client.send(1, ProduceRequest(**given), group=2)

    versions = {0: (version, version)}
    expected = ProduceRequest(**given).prepare(versions)
    ((node_id, given_request, group),) = client.sent
    assert (node_id, group, isinstance(given_request, ProduceRequest)) == (1, 2, True)
    request = given_request.prepare(versions)
    assert request.encode() == request.encode() == expected.encode()
    assert (type(request), request.topics) == (type(expected), topics)
    assert ("encode" in vars(request)) == (len(topics) == 1 == len(topics[0][1]))


def test_request_to_store_records_is_gone_with_its_last_reference() -> None:
    client = SendingClient()
    copy_records_once(client)
    topics = [("orders", [(0, b"records")])]
    client.send(1, ProduceRequest(None, -1, 9_000, topics), group=2)
    request = client.sent.pop()[1].prepare({0: (7, 7)})
    assert b"records" in request.encode()

    watched = weakref.ref(request)
    gc.disable()
    try:
        del request
        assert watched() is None, "its records wait for a pass of the collector"
    finally:
        gc.enable()


class SendingClient:
    """What aiokafka calls a client, as far as it sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any, int]] = []

    def send(self, node_id: int, request: Any, *, group: int) -> None:
        self.sent.append((node_id, request, group))
