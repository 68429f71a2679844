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
from msgspec import UNSET
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
from outbox.message import Message, draw_message_ids
from outbox.service.interface import (
    Confirmed,
    GivenConfirm,
    GivenMessages,
    ListQuery,
    MessageId,
    NamedMessages,
    openapi_document,
)
from outbox.service.message_api import (
    HttpRefusal,
    answer,
    of_error,
    refused,
    unauthenticated,
    unavailable,
)
from outbox.statuses import Change, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from chain_kernel.monitoring import Sample
    from outbox.service.config import Client, Clients, ServiceConfig
    from outbox.service.message_api import MessageApi


def uuids_of(texts: list[str]) -> list[UUID]:
    """Return the ids that a body names, each once."""
    return list(dict.fromkeys(map(UUID, texts)))


_log = logging.getLogger(__name__)

_Body = TypeVar("_Body")

_OURS: Final = (ConnectError, SchemaError, DurabilityError, RetryError)
"""Errors between the service and its database: not the client's fault."""

_BEARER: Final = "bearer "

_CLOSE: Final = {"Connection": "close"}
"""The rest of a body that is refused is not read."""


REFUSALS: Final = Metric[Mapping[str, int]](
    "orderchain_outbox_refusals_total", "counter", "Requests that were refused.", dict, "error"
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
        self.body_bytes = 0
        """Bytes in memory of the bodies of all requests under way."""
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
            exception_handlers={HTTPException: self._refuse, Exception: self._refuse},
        )

    # --------------------------------------------------------------------------------- operations

    async def _store(self, client: Client, request: Request, *, is_prepared: bool) -> Response:
        given = self._body(request, GivenMessages).messages
        for one in given:
            if not client.may_send_to(one.destination):
                expected = "one that this client may send to"
                raise HttpRefusal(403, "not_allowed", "destination", one.destination, expected)
        messages = [
            Message(
                UUID(one.message_id) if one.message_id else draw_message_ids(1)[0],
                one.destination, one.payload, one.key, one.headers or None,
            )
            for one in given
        ]  # fmt: skip
        # With these ids the same request can be repeated: what is stored is not stored twice.
        request.state.more = {"message_ids": [str(each.message_id) for each in messages]}
        return answer(200, await self._api.store(client.name, messages, is_prepared=is_prepared))

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
        with _refusing("message_id"):
            text = msgspec.convert(request.path_params["message_id"], MessageId)
        return answer(200, await self._api.get(client.name, UUID(text)))

    async def _list(self, client: Client, request: Request) -> Response:
        with _refusing("query"):
            query = msgspec.convert(dict(request.query_params), ListQuery, strict=False)
        page = await self._api.page(
            client.name,
            after=None if query.after is UNSET else (UUID(query.after), query.after_consumer),
            destination=None if query.destination is UNSET else query.destination,
            status=None if query.status is UNSET else Status[query.status.upper()],
            rows_max=query.limit,
        )
        return answer(200, page)

    async def _metrics(self, client: Client, request: Request) -> Response:
        if not client.metrics:
            expected = "one with metrics = true"
            raise HttpRefusal(403, "not_allowed", "client", client.name, expected)
        page = metrics_of([*await self._samples(), *REFUSALS.samples(self.refusals, {})])
        return Response(page.body, headers={"Content-Type": page.media_type})

    # ------------------------------------------------------------------------------ without a token

    async def _openapi(self, _: Request) -> Response:
        return Response(self._document, media_type="application/json")

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

    async def _refuse(self, _: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            # A defect of ours; the server logs `error` with its traceback.
            expected = f"no {type(error).__name__} of the service"
            return refused(HttpRefusal(500, "failed", expected=expected))
        word = {404: "unknown_path", 405: "unknown_method"}.get(error.status_code, "refused")
        return refused(HttpRefusal(error.status_code, word, headers=error.headers))

    # ---------------------------------------------------------------------------------- around all

    def _guarded(
        self, work: Callable[[Client, Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            request.state.more = None  # fields of a 503 beside its reason
            try:
                if not self._is_working():
                    raise unavailable("a part of this instance has ended")
                client = self._authenticated(request)
                with self._held(request):
                    async with asyncio.timeout(self._config.request_seconds):
                        request.state.body = await self._content(request)
                        return await work(client, request)
            except HttpRefusal as refusal:
                found = refusal
            except _OURS as error:
                _log.warning("%s: %s", printable(request.url.path), reason_of(error))
                found = unavailable(reason_of(error), request.state.more)
            except RefusedError as error:
                found = of_error(error)
            except TimeoutError:
                late = f"no answer within {self._config.request_seconds} s"
                found = unavailable(late, request.state.more)
            self.refusals[found.error] += 1
            return refused(found)

        return endpoint

    @contextmanager
    def _held(self, request: Request) -> Iterator[None]:
        """Give back at the end what the body of a request has taken of the room for bodies."""
        request.state.body_bytes = 0
        try:
            yield
        finally:
            self.body_bytes -= request.state.body_bytes

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
            with _refusing("body"):
                return msgspec.json.decode(request.state.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpRefusal(
                400, "not_json", "body", expected=f"JSON: {reason_of(error)}"
            ) from None

    async def _content(self, request: Request) -> bytes:
        """Return the body; read no more than it may have, or than there is room for."""
        content = bytearray()
        try:
            async for part in request.stream():
                if self.body_bytes + len(part) > self._config.bodies_bytes_max:
                    raise unavailable("too many bytes of bodies are in memory", headers=_CLOSE)
                self.body_bytes += len(part)
                request.state.body_bytes += len(part)
                content += part
                if len(content) > self._config.body_bytes_max:
                    expected = f"at most {self._config.body_bytes_max} bytes"
                    raise HttpRefusal(413, "too_large", "body", expected=expected, headers=_CLOSE)
        except ClientDisconnect:
            raise HttpRefusal(400, "not_json", "body", expected="the whole of it") from None
        return bytes(content)


@contextmanager
def _refusing(whole: str) -> Iterator[None]:
    """Raise HttpRefusal for what is not as described; `whole` names what has no fields."""
    try:
        yield
    except msgspec.ValidationError as error:
        expected, _, where = str(error).partition(" - at ")
        raise HttpRefusal(400, "invalid", where.strip("`") or whole, expected=expected) from None
