"""The record that asks a callback service to check messages later, as MessagePack.

    [version, sender, due_unix_ns, [consumer, ...], [message_id, ...]]

The ids are 16 bytes each. The record is on the check topic, with the sender's name as its key. It
is sent before the messages that it names: a check of a message that was never sent leads to a send,
a message without a check leads to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from orderchain.text import reason_of
from outbox.errors import BadRecord
from outbox.limits import CONSUMERS_MAX, NAME_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

VERSION: Final = 1

CHECKS_MAX: Final = 20_000
"""Messages of one record: 18 bytes each, so it stays below what brokers take by default."""

CHECK_RECORD_BYTES_MAX: Final = 512 * 1024
"""A larger record is refused unread."""

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
_Id = Annotated[bytes, Meta(min_length=16, max_length=16)]

DUE_NS_MAX: Final = 2**63 - 1
"""In the year 2262: the latest time that a timestamp in nanoseconds can hold."""


class CheckRecord(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The content of one record."""

    version: int
    sender: _Name
    due_unix_ns: Annotated[int, Meta(ge=0, le=DUE_NS_MAX)]
    """When the messages must have been confirmed."""
    consumers: Annotated[list[_Name], Meta(min_length=1, max_length=CONSUMERS_MAX)]
    """The consumers that must confirm: each of them, each message."""
    message_ids: Annotated[list[_Id], Meta(min_length=1, max_length=CHECKS_MAX)]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(CheckRecord)


def encode_checks(
    sender: str, due_unix_ns: int, consumers: Sequence[str], message_ids: Sequence[UUID]
) -> bytes:
    """Return the record's value. Split longer lists into several records."""
    ids = [each.bytes for each in message_ids]
    return _encoder.encode(CheckRecord(VERSION, sender, due_unix_ns, list(consumers), ids))


def decode_checks(value: bytes | None) -> CheckRecord:
    """Return the content of a record. Raises BadRecord, and nothing else, for any bad value."""
    if value is None:
        raise BadRecord("empty", "a record without a value")
    if len(value) > CHECK_RECORD_BYTES_MAX:
        raise BadRecord("size", f"{len(value)} bytes, at most {CHECK_RECORD_BYTES_MAX}")
    try:
        record = _decoder.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise BadRecord("content", reason_of(error)) from None
    if record.version != VERSION:
        raise BadRecord("version", f"{record.version}, expected {VERSION}: upgrade the service")
    for name in (record.sender, *record.consumers):
        if not name.isascii() or not name.isprintable():
            raise BadRecord("name", "a name of printable ASCII characters was expected")
    return record
