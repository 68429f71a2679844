"""What the service takes and returns, as JSON. The types are also its OpenAPI description."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from msgspec import Meta, Struct

from outbox.destination import (
    HEADER_NAME_CHARS_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
)

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
    """What was stored, in the order of the request."""

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
    """What to ask for next; None at the end."""
    after_consumer: str | None


class Failure(Struct):
    """Why something was not done."""

    error: str
    field: str | None = None
    value: str | float | None = None
    expected: str | None = None
