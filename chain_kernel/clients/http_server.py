"""HTTP/1.1 for an ASGI application, strict and bounded: strangers may reach these ports.

It is small because a proxy does what is missing: TLS, compression, HTTP/2, chunked bodies. A body
has a Content-Length, or it is refused: where a request ends can then be seen in one place alone,
and no turn of the event loop decodes a thousand chunks. Each wait for a client has a deadline, and
when there are too many connections the one that has waited for its client for longest is closed.

`--http` of the commands serves in a process of its own, the message service in a thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import time
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from msgspec import Struct

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator, MutableMapping

    AsgiMessage = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[AsgiMessage]]
    Send = Callable[[AsgiMessage], Awaitable[None]]
    AsgiApp = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]

_log = logging.getLogger(__name__)

PIECE_BYTES: Final = 64 * 1024
"""A body is read, and an answer is written, in pieces of at most so many bytes."""

_LINGER_SECONDS: Final = 1.0

_BACKLOG: Final = 1_024
_ACCEPTED_AT_ONCE: Final = 16
"""Then those that were accepted have their turn: a crowd closes no connection unread."""
_FULL_SECONDS: Final = 0.002
"""Until the next look for room, where each connection has a request under way."""

_CONNECTIONS_MAX: Final = 5_000
_DESCRIPTORS_KEPT: Final = 128
"""Descriptors for the database, Kafka, files and the sockets that listen."""


def connections_max() -> int:
    """Return how many connections the process can hold, and have descriptors left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _CONNECTIONS_MAX
    return max(16, min(_CONNECTIONS_MAX, soft - _DESCRIPTORS_KEPT))


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Bounds on what a client may ask of the server."""

    connections_max: int
    """Above it, the connection that has waited for its client for longest is closed."""
    head_bytes_max: int = 32 * 1024
    head_seconds: float = 10.0
    """Seconds until a header must be whole, after the connection was made or the last answer."""
    body_seconds: float = 30.0
    """Seconds until a body must be whole, after its header."""
    write_seconds: float = 10.0
    """Seconds until a client must have taken a piece of its answer."""
    connection_seconds: float | None = None
    """The end of any connection, whatever it does; None where connections stay."""


class HttpRefused(Exception):
    """A request that is answered with a status, and with the end of its connection."""

    def __init__(self, status: int, error: str, expected: str) -> None:
        super().__init__(expected)
        self.status = status
        self.error = error


class ClientGone(OSError):
    """The client has closed its connection, or takes nothing."""


# -- a header --------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE: Final = re.compile(rb"[\t -~\x80-\xff]*")
_FIRST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (/[!-~]*) HTTP/1\.([01])")


class _Request(Struct):
    method: str
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    body_bytes: int
    keeps_alive: bool
    expects_continue: bool


def _request_of(head: bytes) -> _Request:
    first, *lines = head.split(b"\r\n")
    found = _FIRST_LINE.fullmatch(first)
    if found is None:
        raise _no_http("METHOD /path HTTP/1.1")
    headers = [_header_of(line) for line in lines]
    named: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        named.setdefault(name, []).append(value)
    version = f"1.{found[3].decode()}"
    if len(named.get(b"host", ())) != 1 and (version == "1.1" or b"host" in named):
        raise _no_http("one Host")
    options = b",".join(named.get(b"connection", ())).lower()
    return _Request(
        found[1].decode(), found[2], version, headers, _length_of(named),
        version == "1.1" and b"close" not in options,
        b"100-continue" in [value.lower() for value in named.get(b"expect", ())],
    )  # fmt: skip


def _header_of(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not (colon and _TOKEN.fullmatch(name) and _VALUE.fullmatch(value)):
        raise _no_http("headers of the form NAME: VALUE")
    return name.lower(), value


def _length_of(named: dict[bytes, list[bytes]]) -> int:
    lengths = named.get(b"content-length", [])
    if b"transfer-encoding" in named:
        if lengths:  # a proxy in front may see another end of this request
            raise _no_http("Content-Length or Transfer-Encoding, not both")
        raise HttpRefused(411, "no_length", "a body with Content-Length, in one piece")
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
        raise _no_http("one Content-Length, a number")
    return int(lengths[0])


def _no_http(expected: str) -> HttpRefused:
    return HttpRefused(400, "not_http", expected)


# -- a connection ----------------------------------------------------------------------------------


class _Silent:
    """A connection that has sent nothing yet: it costs a descriptor, and no task."""

    is_idle = True
    task = None

    def __init__(self, server: HttpServer, client: socket.socket) -> None:
        self._server = server
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(client, self._take)
        self._timer = self._loop.call_later(server.limits.head_seconds, self.abort)

    def abort(self) -> None:
        """Close it."""
        self._release()
        self._client.close()

    def _take(self) -> None:
        self._release()
        self._server.welcome(self._client)

    def _release(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._client)
        self._server.forget(self)


class _HttpConnection(asyncio.Protocol):
    """One connection: requests one after the other, each wait for the client with a deadline."""

    def __init__(self, server: HttpServer, received: bytes) -> None:
        self._server = server
        self.limits = server.limits
        self._received = bytearray(received)
        self._transport: asyncio.Transport
        self._is_made = False
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._taken.set()
        self._is_gone = False
        self._has_end = False
        """True if nothing more will come; an answer may still be taken."""
        self._is_paused = False
        self._body_left = 0
        self.is_idle = True
        """True if no request is under way."""

    # -- as the transport calls it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; `run` does the rest."""
        self._transport = transport  # type: ignore[assignment]
        self._is_made = True
        self._transport.set_write_buffer_limits(high=0)  # what is written has left the process

    def data_received(self, data: bytes) -> None:
        """Keep what has come, and take no more than a header or a piece."""
        self._received += data
        if len(self._received) > max(self.limits.head_bytes_max, PIECE_BYTES):
            self._is_paused = True
            self._transport.pause_reading()
        self._news.set()

    def eof_received(self) -> bool:
        """Keep the connection open for the answer to a client that sends nothing more."""
        self._has_end = True
        self._news.set()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Wake who waits for the client."""
        self._is_gone = self._has_end = True
        self._news.set()
        self._taken.set()
        self._server.forget(self)

    def pause_writing(self) -> None:
        """Let the application wait until the client has taken what was written."""
        self._taken.clear()

    def resume_writing(self) -> None:
        """Go on writing."""
        self._taken.set()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        self._is_gone = self._has_end = True
        if self._is_made:
            self._transport.abort()

    # -- requests

    async def run(self, client: socket.socket) -> None:
        """Answer its requests, until it ends."""
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: self, client)
            async with asyncio.timeout(self.limits.connection_seconds):
                while await self._serve_one():
                    pass
                if self._body_left:
                    await self._linger()
        except HttpRefused as refusal:
            with suppress(ClientGone):
                await self._refuse(refusal)
                await self._linger()
        except (OSError, TimeoutError):
            self.abort()
        finally:
            if self._is_made:
                self._transport.close()
            else:
                client.close()
            self._server.forget(self)

    async def _serve_one(self) -> bool:
        """Answer one request; return whether another one may follow it."""
        await asyncio.sleep(0)  # a client may send many requests at once: others have their turn
        self.is_idle = True
        head = await self._head()
        if head is None:
            return False
        self.is_idle = False
        request = _request_of(head)
        self._server.waiting.pop(self, None)
        self._body_left = request.body_bytes
        exchange = _Exchange(self, request)
        try:
            await self._server.app(exchange.scope, exchange.receive, exchange.send)
        except Exception as error:
            if self._is_gone:
                raise ClientGone from error
            _log.exception("a request has failed")
            if exchange.has_ended:
                return False
            if exchange.has_begun:
                raise ClientGone from error
            raise HttpRefused(500, "failed", "no defect of the server") from error
        if not exchange.has_ended:
            raise ClientGone("an answer without an end")
        if not exchange.keeps_alive or self._body_left or self._server.is_ending:
            return False
        self._server.waiting.setdefault(self)
        return True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that it waits for its client, not for the application, meanwhile."""
        was_waiting = self in self._server.waiting
        self._server.waiting.setdefault(self)
        try:
            yield
        finally:
            if not was_waiting:
                self._server.waiting.pop(self, None)

    async def _head(self) -> bytes | None:
        """Return a whole header without its end; None where the client sends nothing more."""
        try:
            async with asyncio.timeout(self.limits.head_seconds):
                while (end := self._received.find(b"\r\n\r\n")) < 0:
                    if self._received and not _TOKEN.match(self._received[:1]):
                        raise _no_http("METHOD /path HTTP/1.1")
                    if len(self._received) > self.limits.head_bytes_max:
                        break
                    if self._has_end:
                        return None
                    self._server.waiting.setdefault(self)
                    await self._more()
        except TimeoutError:
            if not self._received:
                return None
            seconds = self.limits.head_seconds
            raise HttpRefused(408, "too_slow", f"a whole header within {seconds:g} s") from None
        if not 0 <= end <= self.limits.head_bytes_max:
            expected = f"a header of at most {self.limits.head_bytes_max} bytes"
            raise HttpRefused(431, "not_http", expected)
        head = bytes(self._received[:end])
        self._forget(end + 4)
        return head

    async def take_body(self) -> bytes:
        """Return the next piece of the body, empty at its end. Raises ClientGone."""
        if not self._body_left:
            return b""
        if not self._received:
            await self._more()
        if not self._received:
            raise ClientGone
        piece = bytes(self._received[: min(PIECE_BYTES, self._body_left)])
        self._forget(len(piece))
        self._body_left -= len(piece)
        return piece

    @property
    def has_body_left(self) -> bool:
        """True if some of the body was not taken."""
        return self._body_left > 0

    async def gone(self) -> None:
        """Wait until the client has gone, or sends nothing more."""
        while not self._has_end:
            await self._more()

    async def _more(self) -> None:
        """Wait until something has come, or nothing more will."""
        self._news.clear()
        if not self._has_end:
            await self._news.wait()

    def _forget(self, count: int) -> None:
        del self._received[:count]
        # Not after each request: what a client sends ahead would pile up.
        has_room = len(self._received) <= max(self.limits.head_bytes_max, PIECE_BYTES)
        if self._is_paused and has_room and not self._is_gone:
            self._is_paused = False
            self._transport.resume_reading()

    # -- answers

    async def write(self, content: bytes) -> None:
        """Return once the client has taken it. Raises ClientGone."""
        for start in range(0, len(content), PIECE_BYTES):
            if self._is_gone:
                raise ClientGone
            self._transport.write(content[start : start + PIECE_BYTES])
            if not self._taken.is_set():
                await self._until_taken()

    async def _until_taken(self) -> None:
        try:
            with self.waiting():
                async with asyncio.timeout(self.limits.write_seconds):
                    await self._taken.wait()
        except TimeoutError:
            self.abort()
            raise ClientGone("takes nothing") from None

    async def _refuse(self, refusal: HttpRefused) -> None:
        """Answer with JSON, as all our services do, and close."""
        body = json.dumps({"error": refusal.error, "expected": str(refusal)}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        await self.write(_head_of(refusal.status, headers) + body)

    async def _linger(self) -> None:
        """Drop what still comes, for a moment: a close before that is read cuts off the answer."""
        if self._is_gone or not self._transport.can_write_eof():
            return
        self._transport.write_eof()
        with suppress(TimeoutError), self.waiting():
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self._has_end:
                    self._forget(len(self._received))
                    await self._more()


class _Exchange:
    """One request and its answer, as ASGI has them."""

    def __init__(self, connection: _HttpConnection, request: _Request) -> None:
        self._connection = connection
        self._request = request
        self._is_first = True
        self._head: bytes | None = None
        self.keeps_alive = request.keeps_alive
        self.has_begun = False
        self.has_ended = False

    @property
    def scope(self) -> AsgiMessage:
        """The request without its body."""
        path, _, query = self._request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": self._request.version,
            "method": self._request.method,
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": self._request.headers,
            "client": None,
            "server": None,
        }

    async def receive(self) -> AsgiMessage:
        """Return the next piece of the body, then wait until the client has gone."""
        connection = self._connection
        if not (self._is_first or connection.has_body_left):
            await connection.gone()
            return {"type": "http.disconnect"}
        if self._is_first and self._request.expects_continue and self._request.body_bytes:
            await connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._is_first:
            self._ends_at = time.monotonic() + connection.limits.body_seconds
        self._is_first = False
        try:
            with connection.waiting():
                async with asyncio.timeout(self._ends_at - time.monotonic()):
                    body = await connection.take_body()
        except (ClientGone, TimeoutError):
            connection.abort()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": connection.has_body_left}

    async def send(self, message: AsgiMessage) -> None:
        """Write a part of the answer. Raises ClientGone, an OSError."""
        if message["type"] == "http.response.start":
            self._head = self._begin(message["status"], list(message["headers"]))
            return
        head, self._head = self._head or b"", None
        self.has_begun = True
        body = b"" if self._request.method == "HEAD" else message.get("body", b"")
        if len(body) > PIECE_BYTES:  # a copy of it for each client that does not read is too much
            await self._connection.write(head)
            head = b""
        await self._connection.write(head + body if head else body)
        self.has_ended = not message.get("more_body", False)

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        named = {name.lower(): value for name, value in headers}
        has_length = b"content-length" in named or status in (204, 304)
        if not has_length or self._connection.has_body_left or named.get(b"connection") == b"close":
            self.keeps_alive = False  # without a length, the end of the connection ends the answer
        if not self.keeps_alive and b"connection" not in named:
            headers.append((b"connection", b"close"))
        return _head_of(status, headers)


def _head_of(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
    for name, value in headers:
        if not (_TOKEN.fullmatch(name) and _VALUE.fullmatch(value)):
            raise ValueError(f"header {name!r} was {value!r}, expected one line")
        lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join([*lines, b"", b""])


# -- the server ------------------------------------------------------------------------------------


class HttpServer:
    """Serves an application, once, in the loop that calls `serve`."""

    def __init__(self, app: AsgiApp, limits: HttpLimits) -> None:
        self.app = app
        self.limits = limits
        self.connections: set[_HttpConnection | _Silent] = set()
        self.waiting: dict[_HttpConnection | _Silent, None] = {}
        """Those that wait for their clients, the longest first."""
        self.is_ending = False
        self._asked_to_end = asyncio.Event()

    async def serve(self, listening: socket.socket, stop_seconds: float = 2.0) -> None:
        """Serve until `stop`, or cancelled; then give requests under way `stop_seconds`."""
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self._listen()
        try:
            await self._asked_to_end.wait()
        finally:
            self.is_ending = True
            self._loop.remove_reader(listening)
            listening.close()
            await self._end(stop_seconds)
            for _ in range(4):  # sockets of aborted connections are closed in the next turn
                await asyncio.sleep(0)

    def _listen(self) -> None:
        if not self.is_ending:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept some of those that have come. Where there is no room, the others wait in line."""
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._is_full and not self.waiting:
                self._pause()
                return
            try:
                client = self._listening.accept()[0]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptors, no memory
                self._pause()
                return
            if self._is_full:  # once somebody is there who needs the place
                longest = next(iter(self.waiting))
                longest.abort()
                self.forget(longest)
            self.welcome(client)

    @property
    def _is_full(self) -> bool:
        return len(self.connections) >= self.limits.connections_max

    def _pause(self) -> None:
        self._loop.remove_reader(self._listening)
        self._loop.call_later(_FULL_SECONDS, self._listen)

    def welcome(self, client: socket.socket) -> None:
        """Begin with what has come from a client, or wait for it."""
        client.setblocking(False)
        try:
            received = client.recv(PIECE_BYTES)
        except BlockingIOError:
            silent = _Silent(self, client)
            self.connections.add(silent)
            self.waiting[silent] = None
            return
        except OSError:
            received = b""
        if not received:
            client.close()
            return
        connection = _HttpConnection(self, received)
        self.connections.add(connection)
        connection.task = self._loop.create_task(connection.run(client))

    def stop(self) -> None:
        """Take no more requests, and let `serve` return."""
        self._asked_to_end.set()

    def forget(self, connection: _HttpConnection | _Silent) -> None:
        """Count it no longer."""
        self.connections.discard(connection)
        self.waiting.pop(connection, None)

    async def _end(self, stop_seconds: float) -> None:
        for connection in list(self.connections):
            if connection.is_idle:
                connection.abort()
        for timeout in (stop_seconds, 1.0):
            tasks = [each.task for each in self.connections if each.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=timeout)
            for connection in list(self.connections):
                connection.abort()
                if connection.task is not None:
                    connection.task.cancel()
