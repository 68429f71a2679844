"""Our Kafka records: the headers of messages, confirms, and requests for checks. Pure.

**A message's record** holds the payload and, beside the caller's own headers, as ASCII text:

    orderchain-message-id          the id, as UUID text
    orderchain-destination         the destination's name
    orderchain-oldest-unfinished   an id: its sender no longer sends a message below it. All records
                                   of ours have it; without it none knows what may still come
    orderchain-confirm-topic       where to confirm; absent if no confirm is asked for
    orderchain-confirm-token       by which to prove it, hexadecimal
    orderchain-mac                 by which to believe the record, 16 bytes: see `record_mac`;
                                   absent in mode 1, whose senders have no key

They come last: a reader that takes the last of several gets ours. A caller's own may not begin with
`orderchain-`: the table and `outbox.message` refuse them.

**The token** is made by the sender from its own key and stored nowhere. The consumer proves with it
that it has received the message, and does not reveal it: so a stranger who can write to the confirm
topic, and even read it, cannot confirm what it has not received.

    token = keyed BLAKE3 of the 16 bytes of the message's id, by the sender's key: 16 bytes
    proof = BLAKE3 of the token, the kind (1 byte), `until_unix_ns` (8 bytes, big-endian) and the
            consumer's name in ASCII: the first 16 bytes

**A confirm record** is MessagePack, with many confirms and the consumer's progress:

    [version, consumer,
     [[message_id, kind, until_unix_ns, partition, offset, proof], ...],
     [[topic, partition, smallest unfinished offset], ...]]

The id is 16 bytes. Kind 0: applied. Kind 1: parked for a retry, or worked on, not to be resent
before `until_unix_ns`. Partition and offset say where the consumer received the message; the proof
(16 bytes) shows that it did. Progress counts only together with a proven confirm. The record is on
the destination's confirm topic, with the consumer's name as its key.

**A check record** asks a callback service to check messages later, as MessagePack:

    [version, sender, due_unix_ns, [consumer, ...], [message_id, ...]]

The ids are 16 bytes each. The record is on the check topic, with the sender's name as its key. It
is sent before the messages that it names: a check of a message that was never sent leads to a send,
a message without a check leads to nothing.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from struct import Struct as Layout
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from uuid import UUID

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from chain_kernel.text import reason_of
from outbox.destination import (
    CONFIRM_RECORD_BYTES_MAX,
    CONFIRMS_MAX,
    CONSUMERS_MAX,
    NAME_CHARS_MAX,
    PROGRESS_MAX,
    TOPIC_CHARS_MAX,
    Name,
    Topic,
    is_plain,
)
from outbox.errors import BadRecord
from outbox.message import RESERVED_PREFIX
from outbox.record_mac import (
    common_hash,
    common_hashes,
    destination_key,
    record_mac,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outbox.destination import Destination
    from outbox.message import Message


_Record = TypeVar("_Record")

TOKEN_BYTES: Final = 16
PROOF_BYTES: Final = 16

_WHAT: Final = Layout(">Bq")


def token_of(key: bytes, message_id: bytes) -> bytes:
    """Return the token of a message, by the 16 bytes of its id."""
    return blake3(message_id, key=key).digest(TOKEN_BYTES)


def proof_of(token: bytes, consumer: str, kind: int, until_unix_ns: int) -> bytes:
    """Return the proof for what a consumer says about the message with that token."""
    said = token + _WHAT.pack(kind, until_unix_ns) + consumer.encode()
    return blake3(said).digest(PROOF_BYTES)


def is_proven(
    key: bytes, message_id: bytes, consumer: str, kind: int, until_unix_ns: int, proof: bytes
) -> bool:
    """Return whether `proof` was made by somebody who has received the message."""
    expected = proof_of(token_of(key, message_id), consumer, kind, until_unix_ns)
    return hmac.compare_digest(expected, proof)


CONFIRM_VERSION: Final = 1

APPLIED: Final = 0
RETRYING: Final = 1

_Int64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Confirm(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """One consumer's confirm of one message."""

    message_id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    kind: Annotated[int, Meta(ge=APPLIED, le=RETRYING)]
    until_unix_ns: _Int64
    """The time of the retry, now if it is worked on; 0 for `APPLIED`."""
    partition: _Partition
    offset: _Int64
    proof: Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
    """Proves that the consumer has received the message; made by `proof_of`."""


class Progress(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A consumer's progress in one partition: all below `offset` is finished or parked."""

    topic: Topic
    partition: _Partition
    offset: _Int64
    """The smallest unfinished offset."""


class ConfirmRecord(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The content of a confirm record."""

    version: int
    consumer: Name
    confirms: Annotated[list[Confirm], Meta(max_length=CONFIRMS_MAX)]
    progress: Annotated[list[Progress], Meta(max_length=PROGRESS_MAX)]


_encoder: Final = msgspec.msgpack.Encoder()
_confirms: Final = msgspec.msgpack.Decoder(ConfirmRecord)


def encode_confirms(
    consumer: str, confirms: Sequence[Confirm], progress: Sequence[Progress] = ()
) -> bytes:
    """Return the record's value. Split lists above CONFIRMS_MAX, PROGRESS_MAX into several."""
    record = ConfirmRecord(CONFIRM_VERSION, consumer, list(confirms), list(progress))
    return _encoder.encode(record)


def decode_confirms(value: bytes | None) -> ConfirmRecord:
    """Return the content of a record. Raises BadRecord, and nothing else, for any bad value."""
    record = _decoded(_confirms, value, CONFIRM_RECORD_BYTES_MAX)
    if record.version != CONFIRM_VERSION:
        expected = f"expected {CONFIRM_VERSION}: upgrade the relay"
        raise BadRecord("version", f"{record.version}, {expected}")
    if not is_plain(record.consumer):
        raise BadRecord("consumer", "a name of printable ASCII characters was expected")
    if any("\0" in line.topic for line in record.progress):
        raise BadRecord("topic", "holds a NUL")
    return record


CHECK_VERSION: Final = 1

CHECKS_MAX: Final = 20_000
"""Messages of one record: 18 bytes each, so it stays below what brokers take by default."""

CHECK_RECORD_BYTES_MAX: Final = 512 * 1024
"""A larger record is refused unread."""

_Id = Annotated[bytes, Meta(min_length=16, max_length=16)]

DUE_NS_MAX: Final = 2**63 - 1
"""In the year 2262: the latest time that a timestamp in nanoseconds can hold."""


class CheckRecord(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The content of a check record."""

    version: int
    sender: Name
    due_unix_ns: Annotated[int, Meta(ge=0, le=DUE_NS_MAX)]
    """The time by which the messages must have been confirmed."""
    consumers: Annotated[list[Name], Meta(min_length=1, max_length=CONSUMERS_MAX)]
    """The consumers that must confirm: each of them, each message."""
    message_ids: Annotated[list[_Id], Meta(min_length=1, max_length=CHECKS_MAX)]


_checks: Final = msgspec.msgpack.Decoder(CheckRecord)


def encode_checks(
    sender: str, due_unix_ns: int, consumers: Sequence[str], message_ids: Sequence[UUID]
) -> bytes:
    """Return the record's value. Split longer lists into several records."""
    ids = [each.bytes for each in message_ids]
    return _encoder.encode(CheckRecord(CHECK_VERSION, sender, due_unix_ns, list(consumers), ids))


def decode_checks(value: bytes | None) -> CheckRecord:
    """Return the content of a record. Raises BadRecord, and nothing else, for any bad value."""
    record = _decoded(_checks, value, CHECK_RECORD_BYTES_MAX)
    if record.version != CHECK_VERSION:
        expected = f"expected {CHECK_VERSION}: upgrade the service"
        raise BadRecord("version", f"{record.version}, {expected}")
    if not all(map(is_plain, (record.sender, *record.consumers))):
        raise BadRecord("name", "a name of printable ASCII characters was expected")
    return record


def _decoded(
    decoder: msgspec.msgpack.Decoder[_Record], value: bytes | None, bytes_max: int
) -> _Record:
    if value is None:
        raise BadRecord("empty", "a record without a value")
    if len(value) > bytes_max:
        raise BadRecord("size", f"{len(value)} bytes, at most {bytes_max}")
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise BadRecord("content", reason_of(error)) from None


MESSAGE_ID: Final = "orderchain-message-id"
DESTINATION: Final = "orderchain-destination"
OLDEST_UNFINISHED: Final = "orderchain-oldest-unfinished"
CONFIRM_TOPIC: Final = "orderchain-confirm-topic"
CONFIRM_TOKEN: Final = "orderchain-confirm-token"  # noqa: S105 - the name of a header
MAC: Final = "orderchain-mac"

RECORD_HEADERS_MAX: Final = 1_000
"""Headers that a consumer looks through. Our senders add six to at most 64."""

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
    ours: dict[str, bytes] = {}
    """Our headers as they came."""

    def is_made_with(
        self, keys: tuple[bytes, ...], record_key: bytes | None, value: bytes | None
    ) -> bool:
        """Return whether the record with these headers was made with a destination's key."""
        get = self.ours.get
        mac, token, message_id = get(MAC, b""), get(CONFIRM_TOKEN), self.message_id.bytes
        own = list(self.own.items()) if self.own else ()
        for common in common_hashes(
            keys, get(DESTINATION, b""), get(OLDEST_UNFINISHED), get(CONFIRM_TOPIC)
        ):
            made = record_mac(common, message_id, token, record_key, own, value or b"")
            if hmac.compare_digest(made, mac):
                return True
        return False


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


class MacMaker:
    """Makes the MACs of the records of one send."""

    def __init__(self, database_key: bytes, destination: Destination, common: Headers) -> None:
        """`common`: of all of its records, as by `common_headers`."""
        key, get = destination_key(database_key, destination.name), dict(common).get
        self._common = common_hash(
            key, get(DESTINATION, b""), get(OLDEST_UNFINISHED), get(CONFIRM_TOPIC)
        )

    def add(self, headers: Headers, message: Message, record_key: bytes | None) -> None:
        """Append the MAC to the other headers of a message's record."""
        own = headers[: len(message.headers)] if message.headers else ()
        name, token = headers[-1]
        mac = record_mac(
            self._common, message.message_id.bytes, token if name == CONFIRM_TOKEN else None,
            record_key, own, message.payload,
        )  # fmt: skip
        headers.append((MAC, mac))


def read_headers(
    headers: Sequence[tuple[str, bytes | None]], make_id: Callable[[str], UUID] = UUID
) -> RecordHeaders:
    """Return the content of a received record's headers. Raises BadRecord.

    Without a value, one of the caller's own is empty, and one of ours is as if it were missing.
    `make_id` makes the message's id from its text: a driver may have a faster class for it.
    """
    if len(headers) > RECORD_HEADERS_MAX:
        raise BadRecord("headers", f"{len(headers)} of them, at most {RECORD_HEADERS_MAX}")
    ours: dict[str, bytes] = {}
    own: dict[str, bytes] = {}
    for name, value in headers:
        if not name.startswith(RESERVED_PREFIX):
            own[name] = value or b""
        elif value is not None:
            ours[name] = value
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
        ours=ours,
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
