"""The message service, listening.

It also calls its clients: this is where each of them is called, and what it answers.

A check is `POST check_url {"message_ids": [...]}`, answered by `{"answers": {message_id: "done" |
"not_done" | "unknown"}}`. An id that is left out was not answered.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import uvicorn
from msgspec import Meta, Struct

from orderchain.clock import SystemClock
from orderchain.errors import ConnectError, RetryError, SettingError
from orderchain.text import reason_of
from outbox.callback.callback_service import CallbackIntake, CallbackService
from outbox.callback.calls import HttpSenderCalls
from outbox.destination import NAME_CHARS_MAX
from outbox.http_call import call_json
from outbox.parts import Parts, Service
from outbox.sender.check_back import CheckBack
from outbox.sender.relay import Relay
from outbox.sender.sweep import Alerts
from outbox.sender.verdicts import Answer
from outbox.service.app import Counted, MessageApp
from outbox.service.http_protocol import StrictProtocol
from outbox.service.message_api import MessageDesk

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from orderchain.clock import Clock
    from orderchain.monitoring import Sample
    from outbox.callback.config import CallbackConfig
    from outbox.sender.sweep import ConsumerLog
    from outbox.service.clients import Client, Clients
    from outbox.service.config import ServiceConfig


class CheckRequest(Struct, forbid_unknown_fields=True):
    """The request to a check endpoint."""

    message_ids: Annotated[list[UUID], Meta(min_length=1, max_length=10_000)]


class CheckAnswer(Struct):
    """The answer of a check endpoint."""

    answers: dict[Annotated[str, Meta(max_length=NAME_CHARS_MAX)], Answer]


_check_answer = msgspec.json.Decoder(CheckAnswer)


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
        asked = CheckRequest(list(message_ids))
        answered = await call_json(
            "POST", client.check_url, client.call_token, asked, self._seconds
        )
        try:
            answers = _check_answer.decode(answered.body).answers
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RetryError(
                f"the check endpoint of {sender} has answered: {reason_of(error)}"
            ) from error
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


class MessageService(Service):
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
        self._desk = MessageDesk(config, clock)
        self.app = MessageApp(config, clients, self._desk, clock, self._is_working, self._counted)
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
            await self._desk.is_ready()
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
            closing.push_async_callback(self._desk.close)
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

    def _counted(self) -> Counted:
        parts: dict[str, Any] = {"relay": self.relay.stats()}
        if self.callback is not None:
            parts["callback"] = self.callback.stats()
        return Counted(parts, self.relay.waiting)

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
