"""The interface of the message service: bodies of requests and answers, OpenAPI, and a client.

The types of the bodies, as JSON, are also the OpenAPI description.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from chain_kernel.errors import RetryError
from outbox.destination import (
    HEADER_NAME_CHARS_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
)
from outbox.http_call import ask
from outbox.message import traced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from outbox.message import Message


MESSAGES_MAX: Final = 1_000
"""Messages of one request: one statement, and one wait for its commit."""

IDS_MAX: Final = 5_000
"""Ids of one request that names messages."""

PAGE_ROWS_MAX: Final = 1_000
"""Deliveries of one page of the list."""

UUID7_PATTERN: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"

_BASE64_PATTERN: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX, pattern="^[ -~]+$")]
MessageId = Annotated[
    str, Meta(pattern=UUID7_PATTERN, max_length=36, description="a UUIDv7, in lower case")
]
_Key = Annotated[
    # Characters here, bytes in the database: no character is longer than four of them.
    str, Meta(min_length=1, max_length=KEY_BYTES_MAX // 4, pattern=r"^[^\u0000]+$")
]
_HeaderName = Annotated[
    str, Meta(min_length=1, max_length=HEADER_NAME_CHARS_MAX, pattern="^[ -~]+$")
]
_HeaderValue = Annotated[str, Meta(max_length=1_000, pattern=r"^[^\u0000]*$")]
_Headers = Annotated[
    dict[_HeaderName, _HeaderValue],
    Meta(max_length=HEADERS_MAX, description="names do not begin with orderchain-"),
]
_Payload = Annotated[
    bytes,
    Meta(
        max_length=PAYLOAD_BYTES_MAX,
        description="base64",
        extra_json_schema={"pattern": _BASE64_PATTERN},
    ),
]
_Ids = Annotated[list[MessageId], Meta(min_length=1, max_length=IDS_MAX)]


class GivenMessage(Struct, forbid_unknown_fields=True):
    """One message to be stored."""

    destination: _Name
    payload: _Payload
    key: _Key | None = None
    headers: _Headers | None = None
    message_id: MessageId | None = None
    """If you draw it yourself, the same request can be repeated: it is stored once."""


class GivenMessages(Struct, forbid_unknown_fields=True):
    """Messages to be stored: all of them, or none."""

    messages: Annotated[list[GivenMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]


class StoredMessages(Struct):
    """The stored messages, in the order of the request."""

    message_ids: list[MessageId]
    repeated: int
    """Those of them that the same request had stored before."""


class NamedMessages(Struct, forbid_unknown_fields=True):
    """Messages that the client has stored before."""

    message_ids: _Ids


class Decided(Struct):
    """The result of a commit or a rollback."""

    decided: int
    repeated: int
    """Decided in the same way before."""


class GivenConfirm(Struct, forbid_unknown_fields=True):
    """A consumer's confirm that it has applied messages."""

    consumer: _Name
    message_ids: _Ids


class Confirmed(Struct):
    """The result of confirms."""

    consumed: int
    repeated: int


class ListQuery(Struct, forbid_unknown_fields=True):
    """The query of a page of the list."""

    after: MessageId | UnsetType = UNSET
    after_consumer: Annotated[
        str,
        Meta(
            max_length=NAME_CHARS_MAX,
            pattern="^[ -~]*$",
            description="beside after, as the page before returned it",
        ),
    ] = ""
    destination: _Name | UnsetType = UNSET
    status: (
        Literal["init", "confirmed", "consumed", "abnormal", "prepared", "cancelled", "abandoned"]
        | UnsetType
    ) = UNSET
    limit: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)] = 100


class ShownDelivery(Struct):
    """The state of a delivery."""

    message_id: UUID
    consumer: str
    destination: str
    status: str
    send_count: int
    check_count: int
    last_error: str | None
    finished_at: datetime | None


class ShownMessage(Struct):
    """A message as it is stored."""

    message_id: UUID
    destination: str
    payload: bytes
    key: str | None
    headers: dict[str, str] | None
    created_at: datetime
    deliveries: list[ShownDelivery]


class Page(Struct):
    """A page of the list, by message_id and consumer."""

    deliveries: list[ShownDelivery]
    after: UUID | None
    """The id to ask for next; None at the end."""
    after_consumer: str | None


class Failure(Struct):
    """Why something was not done."""

    error: str
    field: str | None = None
    value: str | float | None = None
    expected: str | None = None


_REFUSALS: Final = {
    400: "The request is not as described; the body says what to fix.",
    401: "No token, or an unknown one.",
    403: "This client may not do that.",
    404: "There is no such message, delivery or destination; the body says which.",
    409: "The id is another message's, or the message was decided otherwise.",
    413: "The body, or a payload, is too large.",
    415: "The body is not said to be JSON.",
    503: "The database is away, or too much is under way. It is not known whether it was done: "
    "repeat the same request.",
}
_READ: Final = (400, 401, 503)
_WRITE: Final = (*_READ, 403, 404, 409, 413, 415)

_TYPES: Final = (
    GivenMessages,
    StoredMessages,
    NamedMessages,
    Decided,
    GivenConfirm,
    Confirmed,
    ShownMessage,
    Page,
    Failure,
)

_POSTS: Final = (
    ("send", "Store messages, to be sent at once.", GivenMessages, StoredMessages),
    (
        "prepare",
        "Store messages that are not sent before they are committed. Without a decision the "
        "client's check endpoint is asked.",
        GivenMessages,
        StoredMessages,
    ),
    ("commit", "Decide for prepared messages.", NamedMessages, Decided),
    ("rollback", "Decide against prepared messages.", NamedMessages, Decided),
    ("confirm", "Say, as a consumer, that messages were applied.", GivenConfirm, Confirmed),
)


def openapi_document(body_bytes_max: int) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description."""
    _, components = msgspec.json.schema_components(
        _TYPES, ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {
        f"/v1/messages/{name}": {
            "post": _operation(
                name, summary, _json(_ref(result)), _WRITE,
                requestBody={"required": True, "content": _json(_ref(body))},
            )
        }
        for name, summary, body, result in _POSTS
    }  # fmt: skip
    for path, operation in _GETS.items():
        paths[path] = {"get": operation}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Message service",
            "version": "1",
            "description": "Messages that must all arrive and be applied once, in any order. A "
            f"request has at most {body_bytes_max} bytes.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    name: str,
    summary: str,
    answer: dict[str, Any],
    refusals: tuple[int, ...],
    said: str = "Done.",
    **more: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Describe one call: `answer` is the content of what it returns, `refusals` are statuses."""
    found = {"200": {"description": said, "content": answer}}
    for status in sorted(refusals):
        found[str(status)] = {"description": _REFUSALS[status], "content": _json(_ref(Failure))}
    return {"operationId": name, "summary": summary, **more, "responses": found}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _parameter(name: str, schema: dict[str, Any], where: str = "query") -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


_QUERY: Final = msgspec.json.schema(ListQuery)["$defs"][ListQuery.__name__]["properties"]
_HEALTH: Final = {
    "type": "object",
    "properties": {"status": {"type": "string"}},
    "required": ["status"],
}

_GETS: Final = {
    "/metrics": _operation(
        "metrics", "What this instance counts, and what is in the database, for Prometheus.",
        {"text/plain": {"schema": {"type": "string"}}}, (401, 403, 503),
    ),
    "/v1/messages": _operation(
        "list", "Deliveries of this client's messages, by message_id and consumer.",
        _json(_ref(Page)), _READ,
        parameters=[_parameter(name, schema) for name, schema in _QUERY.items()],
    ),
    "/v1/messages/{message_id}": _operation(
        "get", "One message of this client, with its deliveries.",
        _json(_ref(ShownMessage)), (*_READ, 404),
        parameters=[_parameter("message_id", msgspec.json.schema(MessageId), "path")],
    ),
    "/livez": _operation(
        "livez", "The process answers.", _json(_HEALTH), (503,), "Yes.", security=[]
    ),
    "/readyz": _operation("readyz", "It can work.", _json(_HEALTH), (503,), "Yes.", security=[]),
}  # fmt: skip


_T = TypeVar("_T")

CALL_SECONDS: Final = 35.0
"""Deadline of a call: a little above the service's own."""


class MessageClient:
    """Calls one or several instances of the service, the next one when one is away.

    Every method may be called again with the same arguments after a RetryError: what was done is
    not done twice.

    Raises:
        RetryError: each method, where no instance has answered.
        CallRefused: each method, where the service has refused it; the error names what to fix.
    """

    def __init__(self, urls: Sequence[str], token: str, seconds: float = CALL_SECONDS) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._token = token
        self._seconds = seconds
        self._turn = 0

    async def send(self, messages: Sequence[Message]) -> None:
        """Store messages, to be sent at once."""
        await self._post("send", _given(messages), StoredMessages)

    async def prepare(self, messages: Sequence[Message]) -> None:
        """Store messages that are not sent before `commit`."""
        await self._post("prepare", _given(messages), StoredMessages)

    async def commit(self, message_ids: Sequence[UUID]) -> Decided:
        """Decide for messages."""
        return await self._post("commit", NamedMessages(_texts(message_ids)), Decided)

    async def rollback(self, message_ids: Sequence[UUID]) -> Decided:
        """Decide against messages."""
        return await self._post("rollback", NamedMessages(_texts(message_ids)), Decided)

    async def confirm(self, consumer: str, message_ids: Sequence[UUID]) -> Confirmed:
        """Confirm, as a consumer, that messages were applied."""
        return await self._post("confirm", GivenConfirm(consumer, _texts(message_ids)), Confirmed)

    async def get(self, message_id: UUID) -> ShownMessage:
        """Return a message with its deliveries."""
        return await self._ask("GET", f"/v1/messages/{message_id}", None, ShownMessage)

    async def page(self, **query: str | int) -> Page:
        """Return a page of deliveries: after, after_consumer, destination, status, limit."""
        return await self._ask("GET", f"/v1/messages?{urlencode(query)}", None, Page)

    @asynccontextmanager
    async def prepared(self, messages: Sequence[Message]) -> AsyncIterator[list[UUID]]:
        """Prepare messages, run the block as their local transaction, then commit them.

        The block must commit its transaction itself, with `outbox.sender.check_back.decide` in it
        for each message. It does not run if the prepare fails. If it raises, nothing is decided
        here: its commit may have happened, and only a check, which fences, can find out; call
        `rollback` if you know better. The check also finds a commit that does not reach the
        service.
        """
        await self.prepare(messages)
        ids = [message.message_id for message in messages]
        yield ids
        with suppress(RetryError):
            await self.commit(ids)

    async def _post(self, name: str, content: object, kind: type[_T]) -> _T:
        return await self._ask("POST", f"/v1/messages/{name}", content, kind)

    async def _ask(self, method: str, path: str, content: object, kind: type[_T]) -> _T:
        """Ask the instance that answered last, or the next ones."""
        for left in reversed(range(len(self._urls))):
            url = self._urls[self._turn % len(self._urls)] + path
            try:
                return await ask(method, url, self._token, content, self._seconds, kind)
            except RetryError:
                self._turn += 1
                if not left:
                    raise
        raise RetryError("no instance of the message service is known")


def _given(messages: Sequence[Message]) -> GivenMessages:
    return GivenMessages(
        [
            GivenMessage(
                each.destination,
                each.payload,
                each.key,
                None if each.headers is None else dict(each.headers),
                str(each.message_id),
            )
            for each in traced(messages)
        ]
    )


def _texts(message_ids: Sequence[UUID]) -> list[str]:
    return [str(each) for each in message_ids]
