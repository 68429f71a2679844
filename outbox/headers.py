"""The headers of a message's record: which message it is, and what its consumer needs to answer.

Beside the caller's own headers, all ASCII text:

    orderchain-message-id          the id, as UUID text
    orderchain-destination         the destination's name
    orderchain-oldest-unfinished   an id: its sender sends no message below it any more. All records
                                   of ours have it; without it nobody knows what may still come
    orderchain-confirm-topic       where to confirm; absent where no confirm is asked for
    orderchain-confirm-token       by which to prove it (`outbox.proof`), in hexadecimal digits

They come last: a reader that takes the last of several has ours. A caller's own may not begin
with `orderchain-`: the table and `outbox.message` refuse them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from outbox.errors import BadRecord
from outbox.limits import NAME_CHARS_MAX, TOPIC_CHARS_MAX
from outbox.message import RESERVED_PREFIX
from outbox.proof import TOKEN_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outbox.destination import Destination

MESSAGE_ID: Final = "orderchain-message-id"
DESTINATION: Final = "orderchain-destination"
OLDEST_UNFINISHED: Final = "orderchain-oldest-unfinished"
CONFIRM_TOPIC: Final = "orderchain-confirm-topic"
CONFIRM_TOKEN: Final = "orderchain-confirm-token"  # noqa: S105 - the name of a header

RECORD_HEADERS_MAX: Final = 1_000
"""What a consumer looks through. A sender of ours adds five to at most 64."""

COMMON_MAX: Final = 1_024
"""Values remembered: destinations and topics are few, and a sender's oldest message stays long."""

_UUID_CHARS: Final = 36

Headers = list[tuple[str, bytes]]


class RecordHeaders(Struct, frozen=True, gc=False):
    """What a record's headers say."""

    message_id: UUID
    destination: str
    oldest_unfinished: UUID | None
    """Below it, its sender has nothing to send any more. None: it does not say."""
    confirm_topic: str | None
    """None where no confirm is asked for."""
    own: dict[str, bytes]
    """The caller's own headers."""
    confirm_token: bytes | None = None
    """By which to prove a confirm; None where there is none, or none that can be read."""


def common_headers(
    destination: Destination, oldest_unfinished: UUID | None, *, can_confirm: bool = True
) -> Headers:
    """Return what all records of one send have in common.

    `can_confirm`: each gets a token, without which there is nothing to confirm by.
    """
    headers = [(DESTINATION, destination.name.encode())]
    if can_confirm and destination.confirm == "required":
        headers.append((CONFIRM_TOPIC, destination.confirm_topic.encode()))
    if oldest_unfinished is not None:
        headers.append((OLDEST_UNFINISHED, str(oldest_unfinished).encode()))
    return headers


def record_headers(
    message_id: UUID, own: Mapping[str, str] | None, common: Headers, token: bytes | None = None
) -> Headers:
    """Return the headers of one record: the caller's own, and then ours."""
    # Not str(message_id): this runs for every message, and is three times as fast.
    digits = message_id.bytes.hex()
    text = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    headers = [(name, value.encode()) for name, value in own.items()] if own else []
    headers.append((MESSAGE_ID, text.encode()))
    headers += common
    if token is not None:
        headers.append((CONFIRM_TOKEN, token.hex().encode()))
    return headers


def read_headers(
    headers: Sequence[tuple[str, bytes]], make_id: Callable[[str], UUID] = UUID
) -> RecordHeaders:
    """Return what the headers of a received record say. Raises BadRecord.

    `make_id` makes the message's id from its text: a driver may have a faster class for it.
    """
    if len(headers) > RECORD_HEADERS_MAX:
        raise BadRecord("headers", f"{len(headers)} of them, at most {RECORD_HEADERS_MAX}")
    ours: dict[str, bytes] = {}
    own: dict[str, bytes] = {}
    for name, value in headers:
        (ours if name.startswith(RESERVED_PREFIX) else own)[name] = value
    oldest = ours.get(OLDEST_UNFINISHED)
    topic = ours.get(CONFIRM_TOPIC)
    return RecordHeaders(
        message_id=_uuid(MESSAGE_ID, ours.get(MESSAGE_ID), make_id),
        destination=_common_text(DESTINATION, ours.get(DESTINATION), NAME_CHARS_MAX),
        oldest_unfinished=None if oldest is None else _common_uuid(OLDEST_UNFINISHED, oldest),
        confirm_topic=(
            None if topic is None else _common_text(CONFIRM_TOPIC, topic, TOPIC_CHARS_MAX)
        ),
        own=own,
        confirm_token=_token(ours.get(CONFIRM_TOKEN)),
    )


def _token(value: bytes | None) -> bytes | None:
    """Return a token. One that can't be read is none: the message itself is as good as any."""
    if value is None or len(value) != 2 * TOKEN_BYTES or not value.isalnum():
        return None
    try:
        return bytes.fromhex(value.decode("ascii"))
    except ValueError:
        return None


def _uuid(name: str, value: bytes | None, make_id: Callable[[str], UUID] = UUID) -> UUID:
    text = _text(name, value, _UUID_CHARS)
    try:
        return make_id(text)
    except ValueError:
        raise BadRecord("headers", f"{name} is no UUID") from None


def _text(name: str, value: bytes | None, chars_max: int) -> str:
    if value is None:
        raise BadRecord("headers", f"{name} is missing")
    if not 1 <= len(value) <= chars_max or not value.isascii():
        raise BadRecord("headers", f"{name} is not 1 to {chars_max} ASCII characters")
    text = value.decode("ascii")
    if not text.isprintable():
        raise BadRecord("headers", f"{name} holds characters that can't be printed")
    return text


# What thousands of records have in common is read once: it halves the cost of their headers.
_common_text: Final = lru_cache(COMMON_MAX)(_text)
_common_uuid: Final = lru_cache(COMMON_MAX)(_uuid)
