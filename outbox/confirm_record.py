"""Confirm records, and the proof that each carries.

The proof shows that the sender of a confirm has received the message.

Each message carries a token, which its sender makes from its own key and stores nowhere. The
consumer proves with the token that it has the message, and does not reveal the token: so a stranger
who can write to the confirm topic, and even read it, cannot confirm what it has not received.

    token = keyed BLAKE3 of the 16 bytes of the message's id, by the sender's key: 16 bytes
    proof = BLAKE3 of the token, the kind (1 byte), `until_unix_ns` (8 bytes, big-endian) and the
            consumer's name in ASCII: the first 16 bytes

A consumer confirms by records in MessagePack, each with many confirms and its progress:

    [version, consumer,
     [[message_id, kind, until_unix_ns, partition, offset, proof], ...],
     [[topic, partition, smallest unfinished offset], ...]]

The id is 16 bytes. Kind 0: applied. Kind 1: parked for a retry, not to be resent before
`until_unix_ns`. Partition and offset say where the consumer received the message; the proof (16
bytes) shows that it did. Progress counts only together with a proven confirm. The record is on the
destination's confirm topic, with the consumer's name as its key.
"""

from __future__ import annotations

import hmac
from struct import Struct as Layout
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from orderchain.text import reason_of
from outbox.errors import BadRecord
from outbox.limits import (
    CONFIRM_RECORD_BYTES_MAX,
    CONFIRMS_MAX,
    NAME_CHARS_MAX,
    PROGRESS_MAX,
    TOPIC_CHARS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


TOKEN_BYTES: Final = 16
PROOF_BYTES: Final = 16
KEY_BYTES: Final = 32

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


VERSION: Final = 1

APPLIED: Final = 0
RETRYING: Final = 1

_Int64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Confirm(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """One consumer's confirm of one message."""

    message_id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    kind: Annotated[int, Meta(ge=APPLIED, le=RETRYING)]
    until_unix_ns: _Int64
    """When the retry falls due; 0 for `APPLIED`."""
    partition: _Partition
    offset: _Int64
    proof: Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
    """Proves that the consumer has received the message; made by
    `outbox.confirm_record.proof_of`."""


class Progress(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """How far a consumer is in one partition: everything below `offset` is finished or parked."""

    topic: Annotated[str, Meta(min_length=1, max_length=TOPIC_CHARS_MAX)]
    partition: _Partition
    offset: _Int64
    """The smallest unfinished offset."""


class ConfirmRecord(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The content of one record."""

    version: int
    consumer: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    confirms: Annotated[list[Confirm], Meta(max_length=CONFIRMS_MAX)]
    progress: Annotated[list[Progress], Meta(max_length=PROGRESS_MAX)]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ConfirmRecord)


def encode_confirms(
    consumer: str, confirms: Sequence[Confirm], progress: Sequence[Progress] = ()
) -> bytes:
    """Return the record's value. Split longer lists into several records: see `outbox.limits`."""
    return _encoder.encode(ConfirmRecord(VERSION, consumer, list(confirms), list(progress)))


def decode_confirms(value: bytes | None) -> ConfirmRecord:
    """Return the content of a record. Raises BadRecord, and nothing else, for any bad value."""
    if value is None:
        raise BadRecord("empty", "a record without a value")
    if len(value) > CONFIRM_RECORD_BYTES_MAX:
        raise BadRecord("size", f"{len(value)} bytes, at most {CONFIRM_RECORD_BYTES_MAX}")
    try:
        record = _decoder.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise BadRecord("content", reason_of(error)) from None
    if record.version != VERSION:
        raise BadRecord("version", f"{record.version}, expected {VERSION}: upgrade the relay")
    if not record.consumer.isprintable() or not record.consumer.isascii():
        raise BadRecord("consumer", "a name of printable ASCII characters was expected")
    if any("\0" in line.topic for line in record.progress):
        raise BadRecord("topic", "holds a NUL")
    return record
