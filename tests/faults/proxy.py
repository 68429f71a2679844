"""A TCP proxy on loopback that knows where a request begins, and does harm on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from tests.deadlines import deadline

_CHUNK_BYTES = 64 * 1024
_SSL_REQUEST = (80877103).to_bytes(4, "big")
_GSS_REQUEST = (80877104).to_bytes(4, "big")
_NETWORK_ERRORS = (OSError, asyncio.IncompleteReadError)

Matches = Callable[[bytes], bool]
Split = Callable[[asyncio.StreamReader], AsyncIterator[bytes]]


async def postgres_requests(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield each message of a client of PostgreSQL; the first ones have no type byte."""
    has_started = False
    while True:
        kind = await reader.readexactly(1) if has_started else b""
        length = await reader.readexactly(4)
        body = await reader.readexactly(int.from_bytes(length, "big") - 4)
        if not has_started and body[:4] not in (_SSL_REQUEST, _GSS_REQUEST):
            has_started = True
        yield kind + length + body


async def kafka_requests(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield each request of a client of Kafka."""
    while True:
        length = await reader.readexactly(4)
        yield length + await reader.readexactly(int.from_bytes(length, "big"))


def is_commit(request: bytes) -> bool:
    """Whether this commits: the end of a batch's rows, or the COMMIT of a take-over."""
    return request[:1] == b"c" or (request[:1] == b"Q" and request[5:11] == b"COMMIT")


def is_produce(request: bytes) -> bool:
    """Whether this sends records (API key 0)."""
    return request[4:6] == b"\0\0"


class Trap:
    """Stops one connection once, at the first request that `matches`.

    With `lets_through` the request goes to the server, and its answer is held; else the request is
    held. Then the test does what it likes, and `release` sends it, or `cut` breaks the connection.
    """

    def __init__(self, matches: Matches, *, lets_through: bool) -> None:
        self.matches = matches
        self.lets_through = lets_through
        self.is_taken = False
        self.sprung = asyncio.Event()
        """The request has come (and, if let through, its answer too), and is held."""
        self._released = asyncio.Event()
        self._link: Link | None = None

    def take(self, link: Link) -> None:
        self.is_taken = True
        self._link = link

    async def hold(self) -> None:
        self.sprung.set()
        await self._released.wait()

    async def wait(self) -> None:
        """Wait until it has sprung."""
        async with deadline():
            await self.sprung.wait()

    def release(self) -> None:
        """Send on what is held."""
        self._released.set()

    def cut(self) -> None:
        """Break the connection on both sides; what is held is lost."""
        assert self._link is not None
        self._link.abort()

    def cut_client(self) -> None:
        """Break the client's side alone: the server knows of nothing, and may be sent the rest."""
        assert self._link is not None
        self._link.abort_client()


class Link:
    """One client's connection and the one to the server behind it."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._answer_trap: Trap | None = None
        self._is_client_cut = False

    async def run(self) -> None:
        """Pass on until one side ends."""
        up = asyncio.create_task(self._pass_up())
        down = asyncio.create_task(self._pass_down())
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            if self._is_client_cut and not up.done():
                await asyncio.wait([up])
        finally:
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            self.abort()

    def abort(self) -> None:
        self.abort_client()
        self._to_server.transport.abort()

    def abort_client(self) -> None:
        self._is_client_cut = True
        self._to_client.transport.abort()

    async def _pass_up(self) -> None:
        with suppress(*_NETWORK_ERRORS):
            async for request in self._proxy.split(self._from_client):
                trap = self._proxy.trap_for(request)
                if trap is not None:
                    trap.take(self)
                    if trap.lets_through:
                        self._answer_trap = trap
                    else:
                        await trap.hold()
                if not self._proxy.drops_requests:
                    await self._write(self._to_server, request)

    async def _pass_down(self) -> None:
        with suppress(*_NETWORK_ERRORS):
            while chunk := await self._from_server.read(_CHUNK_BYTES):
                trap, self._answer_trap = self._answer_trap, None
                if trap is not None:
                    await trap.hold()
                if not self._proxy.drops_answers:
                    await self._write(self._to_client, chunk)

    async def _write(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        if self._proxy.delay_seconds:
            await asyncio.sleep(self._proxy.delay_seconds)
        rate = self._proxy.bytes_per_second
        step = max(1, int(rate / 20)) if rate else len(message)
        for start in range(0, len(message), max(1, step)):
            writer.write(message[start : start + step])
            await writer.drain()
            if rate:
                await asyncio.sleep(1 / 20)


class Proxy:
    """Listens on a port of its own and passes on to `server_port`, as its dials say."""

    def __init__(
        self, server_port: int, split: Split, *, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        self.split = split
        self.host = host
        self.port = port
        self.delay_seconds = 0.0
        """Before each request and each piece of an answer."""
        self.bytes_per_second = 0
        """0: as fast as it goes."""
        self.drops_requests = False
        self.drops_answers = False
        self.is_refusing = False
        """Break every new connection at once."""
        self._server_port = server_port
        self._server: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], Link | None] = {}
        self._traps: list[Trap] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in list(self._links):
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        await self._server.wait_closed()
        await asyncio.sleep(0)  # an aborted transport closes its socket a turn later

    def set_trap(self, matches: Matches, *, lets_through: bool) -> Trap:
        """Set a trap for the next request that `matches`, on any connection."""
        trap = Trap(matches, lets_through=lets_through)
        self._traps.append(trap)
        return trap

    def trap_for(self, request: bytes) -> Trap | None:
        return next(
            (trap for trap in self._traps if not trap.is_taken and trap.matches(request)), None
        )

    def reset(self) -> None:
        """Break every connection."""
        for link in self._links.values():
            if link is not None:
                link.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: the server's would log what a cancelled connection raises.
        task = asyncio.create_task(self._serve(reader, writer))
        self._links[task] = None
        task.add_done_callback(lambda done: self._links.pop(done, None))
        # However it ends: cancelled before its first step, it cannot clean up itself.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            writer.transport.abort()
            return
        try:
            server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        link = Link(self, (reader, writer), server)
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = link
        await link.run()
