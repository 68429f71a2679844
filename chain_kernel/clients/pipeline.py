"""Transactions sent one after the other over the driver's connection, none waiting for an answer.

Between two commits the server is idle until the answer to the first is read and checked, and the
second is sent. A second transaction that is already in the connection begins when the first has
ended: the server takes messages one after the other, and answers in their order.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, Final

import asyncpg

from chain_kernel.clients.session import SyncWaitCancelled, is_sync_wait_cancelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.clients.postgres import Connection

_HEADER: Final = struct.Struct("!ci")
_HEADER_BYTES: Final = _HEADER.size
_LENGTH_BYTES: Final = 4
"""A message's length counts itself, and the body, but not the kind before it."""

_COPY_DONE: Final = _HEADER.pack(b"c", _LENGTH_BYTES)
_ALL_BINARY: Final = struct.Struct("!hhh")
"""The begin of values: how many forms follow, the form, which is binary, and how many values."""
_BOUND: Final = b"".join(
    [
        bytes(2),  # the form of each result: as it is
        _HEADER.pack(b"E", _LENGTH_BYTES + 5),
        bytes(5),  # the statement that has no name, all rows
        _HEADER.pack(b"S", _LENGTH_BYTES),
    ]
)
"""The end of the message with the values, and the messages that run the statement and end it."""
_READY: Final = b"Z"
_ERROR: Final = b"E"
_NOTICE: Final = b"N"


class Pipeline(asyncio.Protocol):
    """The other end of a connection while transactions are under way, in the driver's place.

    Each one is a transaction of its own, and one that fails leaves the server ready for the next:
    either one message of the simple-query protocol, with a COPY as its last statement, or a
    prepared statement with its values. The driver gets the connection back as soon as every answer
    has come: do not use it before `idle` returns. The driver, asyncpg 0.32, has no public call for
    any of this: without it a commit takes four trips, not one, and none is sent ahead (decision 5
    has the measurements). Contract tests check that it works.
    """

    def __init__(self, connection: Connection) -> None:
        self._driver: asyncio.Protocol = connection._protocol
        self._transport: asyncio.Transport = connection._transport
        self._answers: deque[asyncio.Future[None]] = deque()
        self._error: Exception | None = None
        self._received = bytearray()

    @property
    def is_idle(self) -> bool:
        """True if the driver has the connection."""
        return not self._answers

    def send(self, query: str, data: Sequence[bytes]) -> asyncio.Future[None]:
        """Send `query`, whose last statement is a COPY, and `data` for it; never waits.

        The future ends when the transaction has, with the server's error if it failed,
        SyncWaitCancelled when it was committed without its standbys, and ConnectionError when the
        connection is lost.
        """
        body = query.encode()
        size = sum(map(len, data))
        return self._send(
            [
                _HEADER.pack(b"Q", _LENGTH_BYTES + len(body) + 1) + body + b"\0",
                _HEADER.pack(b"d", _LENGTH_BYTES + size),
                *data,
                _COPY_DONE,
            ]
        )

    def execute(self, name: str, count: int, values: Sequence[bytes]) -> asyncio.Future[None]:
        """Send the prepared statement `name` with its `count` values; never waits.

        `values` are pieces of them: each value in binary form, after its length of 4 bytes. The
        future ends as that of `send`.
        """
        head = b"\0" + name.encode() + b"\0" + _ALL_BINARY.pack(1, 1, count)
        size = len(head) + sum(map(len, values)) + 2
        return self._send(
            [b"".join([_HEADER.pack(b"B", _LENGTH_BYTES + size), head, *values, _BOUND])]
        )

    async def idle(self) -> None:
        """Wait until every answer has come, whatever it is."""
        while self._answers:
            await asyncio.wait(list(self._answers))

    def data_received(self, data: bytes) -> None:
        """Take what the server sends: errors, the ends of transactions, and one kind of warning."""
        received = self._received
        received += data
        start = 0
        while len(received) - start >= _HEADER_BYTES:
            kind, length = _HEADER.unpack_from(received, start)
            stop = start + length + 1
            if stop > len(received):
                break
            if kind == _READY:
                self._end_transaction()
            elif kind == _ERROR:
                fields = _fields_of(bytes(received[start + _HEADER_BYTES : stop]))
                self._error = asyncpg.PostgresError.new(fields)
            elif kind == _NOTICE:
                fields = _fields_of(bytes(received[start + _HEADER_BYTES : stop]))
                if is_sync_wait_cancelled(fields.get("R")):
                    self._error = SyncWaitCancelled()
            start = stop
        del received[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify all who wait, and the driver."""
        error = self._error or exc or ConnectionResetError("the server closed the connection")
        while self._answers:
            answer = self._answers.popleft()
            _fail(answer, error)
        self._driver.connection_lost(exc)

    def _send(self, messages: Sequence[bytes]) -> asyncio.Future[None]:
        if not self._answers:
            self._transport.set_protocol(self)
        answer = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._transport.writelines(messages)
        return answer

    def _end_transaction(self) -> None:
        error, self._error = self._error, None
        answer = self._answers.popleft()
        if not self._answers:
            self._transport.set_protocol(self._driver)
        if error is not None:
            _fail(answer, error)
        elif not answer.done():
            answer.set_result(None)


def _fail(answer: asyncio.Future[None], error: Exception) -> None:
    """End `answer` with `error`, unless its caller is gone; the error need not be read."""
    if not answer.done():
        answer.set_exception(error)
        answer.exception()


def _fields_of(body: bytes) -> dict[str, str]:
    """Return the fields of an error or a notice, by their letters."""
    return {field[:1].decode(): field[1:].decode(errors="replace") for field in body.split(b"\0")}
