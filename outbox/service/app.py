"""The message service as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from chain_kernel.errors import (
    ConnectError,
    DurabilityError,
    OrderchainError,
    RefusedError,
    RetryError,
    SchemaError,
)
from chain_kernel.monitoring import Metric, metrics_of
from chain_kernel.text import printable, reason_of
from outbox.destination import NAME_CHARS_MAX, is_plain
from outbox.message import Message
from outbox.service.config import Room
from outbox.service.interface import (
    PAGE_ROWS_MAX,
    Confirmed,
    GivenConfirm,
    GivenMessages,
    NamedMessages,
    openapi_document,
)
from outbox.service.message_api import (
    HttpRefusal,
    answer,
    draw_missing,
    of_error,
    refused,
    too_much,
    unauthenticated,
    unavailable,
)
from outbox.statuses import Change, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from chain_kernel.monitoring import Sample
    from outbox.acts import Unfinished
    from outbox.service.config import Client, Clients, ServiceConfig
    from outbox.service.message_api import MessageApi


def uuids_of(texts: list[str]) -> list[UUID]:
    """Return the ids that a body names, each once."""
    return list(dict.fromkeys(uuid_of("message_ids", each) for each in texts))


def uuid_or_none(text: str | None) -> UUID | None:
    """Return the id that a body gives, if it gives one."""
    return None if text is None else uuid_of("message_id", text)


def uuid_of(field: str, text: str) -> UUID:
    """Return a UUID in its one usual form."""
    try:
        found = UUID(text)
    except ValueError:
        found = None
    if found is None or str(found) != text:
        raise HttpRefusal(400, "invalid", field, text, "a UUID, in lower case")
    return found


def plain_text(field: str, text: str) -> str:
    """Return a name of a destination or a consumer; empty is allowed."""
    if len(text) > NAME_CHARS_MAX or not is_plain(text):
        expected = f"at most {NAME_CHARS_MAX} printable ASCII characters"
        raise HttpRefusal(400, "invalid", field, text, expected)
    return text


def status_of(text: str) -> Status:
    """Return a status by its name."""
    known = {status.name.lower(): status for status in Status}
    if text not in known:
        raise HttpRefusal(400, "invalid", "status", text, f"one of {', '.join(known)}")
    return known[text]


def limit_of(text: str) -> int:
    """Return how many rows a page may have."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else 0
    if not 1 <= number <= PAGE_ROWS_MAX:
        raise HttpRefusal(400, "invalid", "limit", text, f"1 to {PAGE_ROWS_MAX}")
    return number


_log = logging.getLogger(__name__)

_Body = TypeVar("_Body")

_OURS: Final = (ConnectError, SchemaError, DurabilityError, RetryError)
"""Troubles between the service and its database: not the client's fault."""

_BEARER: Final = "bearer "

_CLOSE: Final = {"Connection": "close"}
"""The rest of a body that is refused is not read."""


REFUSALS: Final = Metric[Mapping[str, int]](
    "orderchain_outbox_refusals_total", "counter", "Requests that were refused.", dict, "error"
)
DATABASE_UP: Final = Metric[bool](
    "orderchain_outbox_database_up", "gauge", "1 when the database has answered, else 0.", float
)


async def _no_samples() -> tuple[Sample, ...]:
    return ()


class MessageApp:
    """The routes over the calls of the service."""

    def __init__(
        self,
        config: ServiceConfig,
        clients: Clients,
        api: MessageApi,
        is_working: Callable[[], bool] = lambda: True,
        samples: Callable[[], Awaitable[Iterable[Sample]]] = _no_samples,
    ) -> None:
        """`samples` returns those of the running parts; it raises TimeoutError where they hang."""
        self.refusals: Counter[str] = Counter()
        """Refused requests, by the word of their error."""
        self._config = config
        self._clients = clients
        self._api = api
        self._is_working = is_working
        self._samples = samples
        self._at_work = Room(config.requests_max, config.client_requests_max)
        self._bodies = Room(config.bodies_bytes_max, config.client_bodies_bytes_max)
        self._document = msgspec.json.encode(openapi_document(config.body_bytes_max))
        posts: dict[str, Callable[[Client, Request], Awaitable[Response]]] = {
            "send": partial(self._store, is_prepared=False),
            "prepare": partial(self._store, is_prepared=True),
            "commit": partial(self._decide, change=Change.COMMITTED),
            "rollback": partial(self._decide, change=Change.ROLLED_BACK),
            "confirm": self._confirm,
        }
        self.asgi = Starlette(
            routes=[
                *(
                    Route(f"/v1/messages/{name}", self._guarded(work), methods=["POST"], name=name)
                    for name, work in posts.items()
                ),
                # Otherwise GET /v1/messages/send asks for a message of that id.
                *(Route(f"/v1/messages/{name}", self._only_post) for name in posts),
                Route("/v1/messages", self._guarded(self._list), methods=["GET"]),
                Route("/v1/messages/{message_id}", self._guarded(self._get), methods=["GET"]),
                Route("/metrics", self._guarded(self._metrics), methods=["GET"]),
                Route("/openapi.json", self._openapi, methods=["GET"]),
                Route("/livez", self._livez, methods=["GET"]),
                Route("/readyz", self._readyz, methods=["GET"]),
            ],
            exception_handlers={HTTPException: self._not_found, Exception: self._failed},
        )

    # --------------------------------------------------------------------------------- operations

    async def _store(self, client: Client, request: Request, *, is_prepared: bool) -> Response:
        given = self._body(request, GivenMessages).messages
        for one in given:
            if not client.may_send_to(one.destination):
                expected = "one that this client may send to"
                raise HttpRefusal(403, "not_allowed", "destination", one.destination, expected)
        ids = draw_missing([uuid_or_none(one.message_id) for one in given])
        messages = [
            Message(message_id, one.destination, one.payload, one.key, one.headers or None)
            for message_id, one in zip(ids, given, strict=True)
        ]
        try:
            stored = await self._api.store(client.name, messages, is_prepared=is_prepared)
        except _OURS as error:
            # With these ids the same request can be repeated: what is stored is not stored twice.
            raise unavailable(
                reason_of(error), {"message_ids": [str(each) for each in ids]}
            ) from error
        return answer(200, stored)

    async def _decide(self, client: Client, request: Request, *, change: Change) -> Response:
        given = self._body(request, NamedMessages)
        return answer(200, await self._api.decide(client.name, change, uuids_of(given.message_ids)))

    async def _confirm(self, client: Client, request: Request) -> Response:
        given = self._body(request, GivenConfirm)
        if not client.may_confirm_as(given.consumer):
            expected = "one that this client may confirm as"
            raise HttpRefusal(403, "not_allowed", "consumer", given.consumer, expected)
        applied = await self._api.confirm(given.consumer, uuids_of(given.message_ids))
        if applied.unknown:
            raise HttpRefusal(
                404, "unknown_message", "message_ids", f"{applied.unknown} of them",
                "deliveries of this consumer; the others are confirmed",
                more={"consumed": applied.consumed, "repeated": applied.repeated},
            )  # fmt: skip
        return answer(200, Confirmed(applied.consumed, applied.repeated))

    async def _get(self, client: Client, request: Request) -> Response:
        message_id = uuid_of("message_id", request.path_params["message_id"])
        return answer(200, await self._api.get(client.name, message_id))

    async def _list(self, client: Client, request: Request) -> Response:
        query = request.query_params
        if unknown := set(query) - {"after", "after_consumer", "destination", "status", "limit"}:
            raise HttpRefusal(400, "invalid", "query", min(unknown), "a parameter as documented")
        consumer = plain_text("after_consumer", query.get("after_consumer", ""))
        after = (uuid_of("after", query["after"]), consumer) if "after" in query else None
        destination = None
        if "destination" in query:
            destination = plain_text("destination", query["destination"])
        page = await self._api.page(
            client.name,
            after=after,
            destination=destination,
            status=status_of(query["status"]) if "status" in query else None,
            rows_max=limit_of(query["limit"]) if "limit" in query else 100,
        )
        return answer(200, page)

    async def _metrics(self, client: Client, request: Request) -> Response:
        if not client.metrics:
            expected = "one with metrics = true"
            raise HttpRefusal(403, "not_allowed", "client", client.name, expected)
        try:
            unfinished = await self._api.unfinished()
        except _OURS as error:
            _log.warning("/metrics: %s", reason_of(error))
            unfinished = None
        answer = metrics_of(self._figures(await self._samples(), unfinished))
        return Response(answer.body, headers={"Content-Type": answer.media_type})

    def _figures(
        self, samples: Iterable[Sample], unfinished: Sequence[Unfinished] | None
    ) -> Iterator[Sample]:
        """Yield what the parts count, then what is in the database; None: it does not answer."""
        yield from samples
        yield from REFUSALS.samples(self.refusals, {})
        yield from DATABASE_UP.samples(unfinished is not None, {})
        for one in unfinished or ():
            yield from one.samples()

    # ------------------------------------------------------------------------------ without a token

    async def _openapi(self, _: Request) -> Response:
        response = answer(200, None)
        response.body = self._document
        response.headers["content-length"] = str(len(self._document))
        return response

    async def _livez(self, _: Request) -> Response:
        try:
            await self._samples()
        except TimeoutError:
            return refused(unavailable("the event loop of the parts does not answer"))
        return answer(200, {"status": "alive"})

    async def _readyz(self, _: Request) -> Response:
        try:
            async with asyncio.timeout(self._config.relay.connect_seconds):
                await self._api.is_ready()
        except (TimeoutError, OrderchainError) as error:
            silent = isinstance(error, TimeoutError)
            reason = "the database does not answer" if silent else reason_of(error)
            return refused(unavailable(reason))
        if not self._is_working():
            return refused(unavailable("a part of this instance has ended"))
        return answer(200, {"status": "ready"})

    async def _only_post(self, _: Request) -> Response:
        return refused(HttpRefusal(405, "unknown_method", headers={"Allow": "POST"}))

    async def _failed(self, _: Request, error: Exception) -> Response:
        """Answer for a defect of ours; the server logs `error` with its traceback."""
        return refused(
            HttpRefusal(500, "failed", expected=f"no {type(error).__name__} of the service")
        )

    async def _not_found(self, _: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = getattr(error, "headers", None)
        word = {404: "unknown_path", 405: "unknown_method"}.get(status, "refused")
        return refused(HttpRefusal(status, word, headers=headers))

    # ---------------------------------------------------------------------------------- around all

    def _guarded(
        self, work: Callable[[Client, Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                if not self._is_working():
                    raise unavailable("a part of this instance has ended")
                client = self._authenticated(request)
                with self._held(client, request):
                    async with asyncio.timeout(self._config.request_seconds):
                        request.state.body = await self._content(request)
                        with self._slot(client):
                            return await work(client, request)
            except HttpRefusal as refusal:
                found = refusal
            except _OURS as error:
                _log.warning("%s: %s", printable(request.url.path), reason_of(error))
                found = unavailable(reason_of(error))
            except RefusedError as error:
                found = of_error(error)
            except TimeoutError:
                found = unavailable(f"no answer within {self._config.request_seconds} s")
            self.refusals[found.error] += 1
            return refused(found)

        return endpoint

    @contextmanager
    def _held(self, client: Client, request: Request) -> Iterator[None]:
        """Give back at the end what the body of a request has taken of the room for bodies."""
        request.state.client, request.state.body_bytes = client.name, 0
        try:
            yield
        finally:
            self._bodies.give_back(client.name, request.state.body_bytes)

    @contextmanager
    def _slot(self, client: Client) -> Iterator[None]:
        """Count a request that is whole as under way until it is answered. Raises HttpRefusal."""
        if not self._at_work.has_client_room(client.name, 1):
            raise too_much("requests", f"{self._config.client_requests_max} under way at once")
        if not self._at_work.has_room(1):
            raise unavailable("too many requests are under way")
        self._at_work.take(client.name, 1)
        try:
            yield
        finally:
            self._at_work.give_back(client.name, 1)

    def _authenticated(self, request: Request) -> Client:
        given = request.headers.getlist("authorization")
        if len(given) > 1:
            # A proxy in front may have looked at the other one.
            raise HttpRefusal(400, "invalid", "Authorization", f"{len(given)} of them", "one")
        if not given or given[0][: len(_BEARER)].lower() != _BEARER:
            raise unauthenticated()
        client = self._clients.by_token(given[0][len(_BEARER) :].strip())
        if client is None:
            raise unauthenticated()
        return client

    def _body(self, request: Request, kind: type[_Body]) -> _Body:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise HttpRefusal(415, "not_json", "Content-Type", content_type, "application/json")
        try:
            return msgspec.json.decode(request.state.body, type=kind)
        except msgspec.ValidationError as error:
            expected, _, where = str(error).partition(" - at ")
            field = where.strip("`") or "body"
            raise HttpRefusal(400, "invalid", field, expected=expected) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpRefusal(
                400, "not_json", "body", expected=f"JSON: {reason_of(error)}"
            ) from None

    async def _content(self, request: Request) -> bytes:
        """Return the body; read no more than it may have, or than there is room for."""
        content = bytearray()
        try:
            async for part in request.stream():
                self._hold(request, len(part))
                content += part
                if len(content) > self._config.body_bytes_max:
                    expected = f"at most {self._config.body_bytes_max} bytes"
                    raise HttpRefusal(413, "too_large", "body", expected=expected, headers=_CLOSE)
        except ClientDisconnect:
            raise HttpRefusal(400, "not_json", "body", expected="the whole of it") from None
        return bytes(content)

    def _hold(self, request: Request, count: int) -> None:
        """Count so many more bytes of a body. Raises HttpRefusal if there is no room."""
        client = request.state.client
        if not self._bodies.has_client_room(client, count):
            at_most = f"{self._config.client_bodies_bytes_max} bytes of bodies at once"
            raise too_much("body", at_most, _CLOSE)
        if not self._bodies.has_room(count):
            raise unavailable("too many bytes of bodies are in memory", headers=_CLOSE)
        self._bodies.take(client, count)
        request.state.body_bytes += count
