"""The message service, listening.

It also calls its clients: this is where each of them is called, and what it answers.

A check is `POST check_url {"message_ids": [...]}`, answered by `{"answers": {message_id: "done" |
"not_done" | "unknown"}}`. An id that is left out was not answered.

HTTP/1.1 is uvicorn's protocol, made strict and bounded. uvicorn's own lacks three things. It has no
deadline before a request's header is complete: a client that sends nothing, or a byte now and then,
keeps its connection forever. It accepts a request with both Content-Length and Transfer-Encoding,
and a proxy in front may see its end elsewhere: what follows would be a request that nobody sent
(RFC 9112, section 6.3). It answers what is no HTTP with plain text, while everything else that this
service returns is JSON.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import h11
import msgspec
import uvicorn
from msgspec import Meta, Struct
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from orderchain.clock import SystemClock
from orderchain.errors import ConnectError, SettingError
from orderchain.text import reason_of
from outbox.callback.callback_service import CallbackIntake, CallbackService
from outbox.callback.calls import HttpSenderCalls
from outbox.destination import NAME_CHARS_MAX
from outbox.http_call import ask
from outbox.parts import Parts, ServiceOfParts
from outbox.sender.check_back import CheckBack
from outbox.sender.due_decisions import Answer
from outbox.sender.relay import Relay
from outbox.sender.sweep import Alerts
from outbox.service.app import MessageApp
from outbox.service.message_api import MessageApi

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from orderchain.clock import Clock
    from orderchain.monitoring import Sample
    from outbox.callback.config import CallbackConfig
    from outbox.sender.sweep import ConsumerLog
    from outbox.service.config import Client, Clients, ServiceConfig


class CheckRequest(Struct, forbid_unknown_fields=True):
    """The request to a check endpoint."""

    message_ids: Annotated[list[UUID], Meta(min_length=1, max_length=10_000)]


class CheckAnswer(Struct):
    """The answer of a check endpoint."""

    answers: dict[Annotated[str, Meta(max_length=NAME_CHARS_MAX)], Answer]


class ClientCalls:
    """Asks clients by their HTTP endpoints."""

    def __init__(self, clients: Clients, seconds: float) -> None:
        self._clients = clients
        self._seconds = seconds

    async def check(self, sender: str, message_ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
        """Ask a sender about messages. Raises RetryError, CallRefused, SettingError: no answer."""
        client = self.client(sender)
        if not client.check_url:
            raise SettingError("check_url", "", f"one for client {sender}")
        asked, url = CheckRequest(list(message_ids)), client.check_url
        answer = await ask("POST", url, client.call_token, asked, self._seconds, CheckAnswer)
        answers = answer.answers
        return {each: answers[str(each)] for each in message_ids if str(each) in answers}

    def client(self, sender: str) -> Client:
        """Return the client of that name. Raises SettingError."""
        client = self._clients.by_name(sender)
        if client is None:
            raise SettingError("client", sender, "one that the file of clients names")
        return client


_log = logging.getLogger(__name__)

_BACKLOG = 1_024


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the program that runs the service has some already."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signal handlers as they are."""
        yield


class MessageService(ServiceOfParts):
    """Serves clients, sends what they store, and asks about what they prepared.

    Any number may run side by side on the same tables: each message, check and send is claimed by
    one of them, and what a dead one had claimed falls due again.

    After a part has ended, nothing is accepted: requests are answered with 503, and the server
    stops listening. A stop answers the requests under way, and sends what they stored.
    """

    def __init__(
        self,
        config: ServiceConfig,
        clients: Clients,
        *,
        callback: CallbackConfig | None = None,
        clock: Clock | None = None,
        consumer_logs: Mapping[str, ConsumerLog] | None = None,
    ) -> None:
        """`callback` makes it a callback service, too (mode 5); `consumer_logs` as for a relay."""
        clock = clock or SystemClock()
        self.relay = Relay(config.relay, clock=clock, consumer_logs=consumer_logs)
        self._config = config
        self._api = MessageApi(config, clock)
        self.app = MessageApp(
            config, clients, self._api, clock, self._is_working, self._own_samples
        )
        self._alerts = Alerts(config.relay, self.relay.counters)
        calls = ClientCalls(clients, config.checking.ask_seconds)
        self.check_back = CheckBack(
            config.relay, calls.check, config.checking, clock=clock, on_abnormal=self._alerts.report
        )
        self.callback: CallbackService | None = None
        if callback is not None:
            sender_calls = HttpSenderCalls(calls.client, callback.call_seconds)
            self.callback = CallbackService(callback, sender_calls, clock=clock)
            self._intake = CallbackIntake(callback, self.callback, clock=clock)
        self._server = _Server(_uvicorn_config(config, self.app.asgi))
        self._socket: socket.socket | None = None
        self._http: asyncio.Task[None] | None = None
        self._parts = Parts("message service", self._stop_serving)

    async def start(self) -> None:
        """Connect to the database, listen, and begin.

        Raises ConnectError, SchemaError, DurabilityError.
        """
        try:
            await self._api.is_ready()
            if self.callback is not None:
                await self.callback.check()
            self._socket = _listening(self._config)
            await self.relay.start()
        except BaseException:
            await self.stop()
            raise
        self._http = self._parts.begin(
            "http", self._server.serve(sockets=[self._socket]), is_spared=True
        )
        self._parts.begin("relay", self.relay.run())
        self._parts.begin("check-back", self.check_back.run())
        self._parts.begin("alerts", self._alerts.run())
        if self.callback is not None:
            self._parts.begin("callback", self.callback.run())
            self._parts.begin("intake", self._intake.run())

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        if self._socket is None:
            return ""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of its relay; `/metrics` has those of its clients, too."""
        return self.relay.samples()

    def why_not_ready(self) -> str | None:
        """Return in one line why it takes no requests, or sends nothing; None when it works."""
        if self._parts.failure is not None:
            return reason_of(self._parts.failure)
        return self.relay.why_not_ready()

    async def _stop(self) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._api.close)
            if self.callback is not None:
                closing.push_async_callback(self.callback.close)
            closing.push_async_callback(self.check_back.close)
            closing.push_async_callback(self.relay.stop)
            closing.callback(self._close_socket)
            closing.push_async_callback(self._parts.end)
            self._parts.expect_end("http")
            self._stop_serving()
            if self._http is not None:
                await asyncio.wait([self._http], timeout=self._config.stop_seconds)

    def _stop_serving(self) -> None:
        self._server.should_exit = True

    def _close_socket(self) -> None:
        with suppress(OSError):
            if self._socket is not None:
                self._socket.close()

    def _own_samples(self) -> Iterator[Sample]:
        yield from self.relay.own_samples()
        if self.callback is not None:
            yield from self.callback.samples()

    def _is_working(self) -> bool:
        return self._parts.failure is None


def _listening(config: ServiceConfig) -> socket.socket:
    """Return a socket that listens. Raises ConnectError."""
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        return socket.create_server((config.host, config.port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        where = f"{config.host}:{config.port}"
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConnectError("address", where, f"one to listen at: {reason}") from error


def _uvicorn_config(config: ServiceConfig, app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type] # an ASGI application
        lifespan="off",
        http=StrictProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(config.stop_seconds),
    )


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
