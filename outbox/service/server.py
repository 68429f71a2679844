"""The message service as a process: it listens, works as a relay, and calls its clients.

A check is `POST check_url {"message_ids": [...]}`, answered by `{"answers": {message_id: "done" |
"not_done" | "unknown"}}`. An id that is left out was not answered.

HTTP is served by a thread of its own, with the database connections that requests need. So whatever
clients and strangers do to it, the relay's sweep and the checks go on.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from msgspec import Meta, Struct

from chain_kernel.clients.http_server import HttpLimits, connections_max
from chain_kernel.clock import SystemClock
from chain_kernel.errors import ConnectError, OrderchainError, SettingError
from chain_kernel.text import reason_of
from outbox.callback.callback_service import CallbackIntake, CallbackService
from outbox.callback.calls import HttpSenderCalls
from outbox.destination import NAME_CHARS_MAX
from outbox.http_call import ask
from outbox.parts import Parts, ServiceOfParts
from outbox.sender.check_back import CheckBack
from outbox.sender.due_decisions import Answer
from outbox.sender.relay import Relay
from outbox.service.app import MessageApp
from outbox.service.http_thread import Glance, ServerThread
from outbox.service.message_api import MessageApi

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from chain_kernel.clock import Clock
    from chain_kernel.monitoring import Sample
    from outbox.callback.config import CallbackConfig
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


_BACKLOG = 1_024


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
    ) -> None:
        """`callback` makes it a callback service, too (mode 5)."""
        clock = clock or SystemClock()
        self.relay = Relay(config.relay, clock=clock)
        self._config = config
        self._api = MessageApi(config, clock)
        self.app = MessageApp(
            config,
            clients,
            self._api,
            lambda: self._parts.failure is None,
            self._glanced_samples,
        )
        calls = ClientCalls(clients, config.checking.ask_seconds)
        self.check_back = CheckBack(config.relay, calls.check, config.checking, clock=clock)
        self.callback: CallbackService | None = None
        if callback is not None:
            sender_calls = HttpSenderCalls(calls.client, callback.call_seconds)
            self.callback = CallbackService(callback, sender_calls, clock=clock)
            self._intake = CallbackIntake(callback, self.callback, clock=clock)
        self._glance: Glance[list[Sample]] | None = None
        self._thread: ServerThread | None = None
        self._socket: socket.socket | None = None
        self._http: asyncio.Task[None] | None = None
        self._parts = Parts("message service", self._stop_serving)

    async def start(self) -> None:
        """Connect to the database, listen, and begin.

        Raises:
            ConnectError: the database refuses the login, or the address is taken.
            SchemaError: the database has no outbox, or one of another version.
            DurabilityError: the database may lose what it has committed.
            RetryError: the database is away.
        """
        loop = asyncio.get_running_loop()
        self._glance = Glance(self._own_samples, loop)
        self._thread = ServerThread(
            self.app.asgi, HttpLimits(connections_max=connections_max()), type(loop)
        )
        self._thread.start()
        try:
            await asyncio.wrap_future(self._thread.call(self._api.is_ready()))
            if self.callback is not None:
                await self.callback.check()
            self._socket = _listening(self._config)
            await self.relay.start()
        except BaseException:
            await self.stop()
            raise
        self._http = self._parts.begin(
            "http", self._serve(self._thread, self._socket), is_spared=True
        )
        self._parts.begin("relay", self.relay.run())
        self._parts.begin("check-back", self.check_back.run())
        if self.callback is not None:
            self._parts.begin("callback", self.callback.run())
            self._parts.begin("intake", self._intake.run())

    @property
    def address(self) -> str:
        """The URL that it listens at."""
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
        self._parts.expect_end("http")
        self._stop_serving()
        thread, self._thread = self._thread, None
        http, self._http = self._http, None
        async with AsyncExitStack() as closing:
            if thread is not None:
                ending = partial(thread.end, self._config.stop_seconds)
                closing.push_async_callback(asyncio.to_thread, ending)
                closing.push_async_callback(
                    lambda: asyncio.wrap_future(thread.call(self._api.close()))
                )
            if self.callback is not None:
                closing.push_async_callback(self.callback.close)
            closing.push_async_callback(self.check_back.close)
            closing.push_async_callback(self.relay.stop)
            if self._socket is not None:
                closing.callback(self._socket.close)
            closing.push_async_callback(self._parts.end)
            if http is not None:
                await asyncio.wait([http], timeout=2 * self._config.stop_seconds)
                if self._parts.failure is None:
                    # Claims what the last requests have stored; the relay sends it before it ends.
                    with suppress(TimeoutError, OrderchainError):
                        async with asyncio.timeout(self._config.relay.stop_seconds):
                            await self.relay.sweep(everything=False)

    async def _serve(self, thread: ServerThread, listening: socket.socket) -> None:
        await asyncio.wrap_future(thread.serve(listening, self._config.stop_seconds))

    def _stop_serving(self) -> None:
        if self._thread is not None:
            self._thread.stop_serving()

    def _own_samples(self) -> list[Sample]:
        found = list(self.relay.samples())
        if self.callback is not None:
            found += self.callback.samples()
        return found

    async def _glanced_samples(self) -> list[Sample]:
        """Return the samples of its parts, to the thread. Raises TimeoutError when they hang."""
        return [] if self._glance is None else await self._glance.take()


def _listening(config: ServiceConfig) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        return socket.create_server((config.host, config.port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        where = f"{config.host}:{config.port}"
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConnectError("address", where, f"one to listen at: {reason}") from error
