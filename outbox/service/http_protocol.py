"""HTTP/1.1 as the service speaks it: uvicorn's protocol, made strict and bounded.

uvicorn's own protocol lacks three things. It has no deadline before a request's header is complete:
a client that sends nothing, or a byte now and then, keeps its connection forever. It accepts a
request with both Content-Length and Transfer-Encoding, and a proxy in front may see its end
elsewhere: what follows would be a request that nobody sent (RFC 9112, section 6.3). It answers what
is no HTTP with plain text, while everything else that this service returns is JSON.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any, Final

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

if TYPE_CHECKING:
    import asyncio

HEAD_SECONDS: Final = 10
"""How soon a request's header must be complete after the connection was made, or after the previous
answer. Clients that keep a connection for longer open a new one: that costs a millisecond."""

HEAD_BYTES_MAX: Final = 32 * 1024
"""Bytes of a request's header that is not complete yet; ours have a few hundred bytes."""

_CONNECTIONS_MAX: Final = 5_000
_DESCRIPTORS_KEPT: Final = 128
"""Descriptors for the database, Kafka, files and the sockets that listen."""


def connections_max() -> int:
    """Return how many connections the process can hold, and have descriptors left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _CONNECTIONS_MAX
    return max(16, min(_CONNECTIONS_MAX, soft - _DESCRIPTORS_KEPT))


class StrictConnection(h11.Connection):
    """h11, which refuses a request whose end can be seen in two places."""

    refusal = h11.RemoteProtocolError("a request that can be read")
    """Why the last event was refused."""

    def next_event(self) -> Any:  # noqa: ANN401 - as h11 has it
        """Return the next event. Raises RemoteProtocolError."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_length(event)
        except h11.RemoteProtocolError as error:
            self.refusal = error
            raise
        return event


def _check_length(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError("Content-Length or Transfer-Encoding, not both")


class StrictProtocol(H11Protocol):
    """One connection. No received data is a reason to wait for it beyond HEAD_SECONDS."""

    conn: StrictConnection

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(*given, **named)
        self.conn = StrictConnection(h11.SERVER, HEAD_BYTES_MAX)
        self.timeout_keep_alive = HEAD_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, and make room if there is none."""
        super().connection_made(transport)
        if len(self.connections) > connections_max() and not self._end_longest_waiting():
            self._refuse(503, "unavailable", "the same request again: too many connections")
            return
        self.timeout_keep_alive_task = self.loop.call_later(
            HEAD_SECONDS, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        """Take what came. A byte is no request: the deadline holds until a header is complete."""
        self.conn.receive_data(data)
        self.handle_events()

    @property
    def waits_until(self) -> float | None:
        """Until when a request is waited for, by the loop's clock; None while one is under way."""
        if self.timeout_keep_alive_task is None or self.timeout_keep_alive_task.cancelled():
            return None
        return self.timeout_keep_alive_task.when()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection whose time is over; answer first if part of a header has come."""
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, "too_slow", f"a whole header within {HEAD_SECONDS} s")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; `msg` is uvicorn's and says less than h11."""
        error = self.conn.refusal
        self._refuse(error.error_status_hint, "not_http", str(error))

    def _end_longest_waiting(self) -> bool:
        """Close the connection that has been without a request for longest, if there is one."""
        waiting = [
            (until, connection)
            for connection in self.connections
            if isinstance(connection, StrictProtocol)
            and connection is not self
            and (until := connection.waits_until) is not None
        ]
        if not waiting:
            return False
        _, longest = min(waiting, key=lambda each: each[0])
        longest.transport.close()
        self.connections.discard(longest)
        return True

    def _refuse(self, status: int, error: str, expected: str) -> None:
        """Answer with JSON, as the service does everywhere, and close."""
        body = msgspec.json.encode({"error": error, "expected": expected})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
