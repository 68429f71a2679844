"""The headers of a message's record: which message it is, and what its consumer needs to answer.

They come in addition to the caller's own headers. All are ASCII text:

    orderchain-message-id          the id, as UUID text
    orderchain-destination         the destination's name
    orderchain-oldest-unfinished   an id: its sender no longer sends a message below it. All records
                                   of ours have it; without it nobody knows what may still come
    orderchain-confirm-topic       where to confirm; absent if no confirm is asked for
    orderchain-confirm-token       by which to prove it (`outbox.confirm_record`), hexadecimal

They come last: a reader that takes the last of several gets ours. A caller's own may not begin with
`orderchain-`: the table and `outbox.message` refuse them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from outbox.confirm_record import TOKEN_BYTES
from outbox.errors import BadRecord
from outbox.limits import NAME_CHARS_MAX, TOPIC_CHARS_MAX
from outbox.message import RESERVED_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outbox.destination import Destination

MESSAGE_ID: Final = "orderchain-message-id"
DESTINATION: Final = "orderchain-destination"
OLDEST_UNFINISHED: Final = "orderchain-oldest-unfinished"
CONFIRM_TOPIC: Final = "orderchain-confirm-topic"
CONFIRM_TOKEN: Final = "orderchain-confirm-token"  # noqa: S105 - the name of a header

RECORD_HEADERS_MAX: Final = 1_000
"""Headers that a consumer looks through. Our senders add five to at most 64."""

COMMON_MAX: Final = 1_024
"""Values that are cached: there are few destinations and topics, and a sender's oldest message
changes seldom."""

_UUID_CHARS: Final = 36

Headers = list[tuple[str, bytes]]


class RecordHeaders(Struct, frozen=True, gc=False):
    """The content of a record's headers."""

    message_id: UUID
    destination: str
    oldest_unfinished: UUID | None
    """The sender has nothing left to send below it. None: the record does not say."""
    confirm_topic: str | None
    """None if no confirm is asked for."""
    own: dict[str, bytes]
    """The caller's own headers."""
    confirm_token: bytes | None = None
    """Proves a confirm; None if it is missing or unreadable."""


def common_headers(
    destination: Destination, oldest_unfinished: UUID | None, *, can_confirm: bool = True
) -> Headers:
    """Return the headers that all records of one send have in common.

    `can_confirm`: each record gets a token, without which it cannot be confirmed.
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
    """Return the headers of one record: the caller's own, then ours."""
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
    """Return the content of a received record's headers. Raises BadRecord.

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
    """Return a token; None if it is unreadable: the message itself is as good as any."""
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


# Values that thousands of records have in common are read once: it halves the cost of their
# headers.
_common_text: Final = lru_cache(COMMON_MAX)(_text)
_common_uuid: Final = lru_cache(COMMON_MAX)(_uuid)
