"""An instance of the message service: the HTTP server, a relay, and check-back, in one process."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from orderchain.clock import SystemClock
from orderchain.errors import ConnectError
from outbox.alerts import Alerts
from outbox.callback.callback_service import CallbackService
from outbox.callback.calls import HttpSenderCalls
from outbox.callback.intake import CallbackIntake
from outbox.checking import CheckBack
from outbox.parts import Parts, uninterrupted
from outbox.relay import Relay
from outbox.service.app import Counted, MessageApp
from outbox.service.calling import ClientCalls
from outbox.service.desk import MessageDesk
from outbox.service.http_protocol import StrictProtocol

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from orderchain.clock import Clock
    from outbox.callback.config import CallbackConfig
    from outbox.service.clients import Clients
    from outbox.service.config import ServiceConfig
    from outbox.sweeping import ConsumerLog

_log = logging.getLogger(__name__)

_BACKLOG = 1_024


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: whoever runs the service has some already."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave them as they are."""
        yield


class MessageService:
    """Serves clients, sends what they store, and asks about what they prepared.

    Any number may run side by side on the same tables: each message, check and send is claimed by
    one of them, and what a dead one had claimed falls due again.
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
        """`callback` makes it a callback service, too (mode 5); `consumer_logs` as of a relay."""
        clock = clock or SystemClock()
        self.relay = Relay(config.relay, clock=clock, consumer_logs=consumer_logs)
        self._config = config
        self._desk = MessageDesk(config, clock)
        self.app = MessageApp(config, clients, self._desk, clock, self._is_working, self._counted)
        self._alerts = Alerts(config.relay, self.relay.counters)
        calls = ClientCalls(clients, config.checking.ask_seconds)
        self.check_back = CheckBack(
            config.relay, calls.check, config.checking, clock=clock, on_abnormal=self._alerts.tell
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

    async def run(self) -> None:
        """Raise what a part has raised, when one has ended; return at a stop.

        From the end of a part on nothing is accepted: requests are answered with 503, and the
        server stops to listen.
        """
        await self._parts.wait()

    async def stop(self) -> None:
        """Answer the requests under way, send what they stored, and end; also when cancelled.

        Never raises else.
        """
        await uninterrupted(self._stop())

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

    async def __aenter__(self) -> MessageService:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop()
        if kind is None:
            self._parts.check()

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
