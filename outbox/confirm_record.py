"""The record by which a consumer confirms: many confirms and its progress in one, as MessagePack.

    [version, consumer,
     [[message_id, kind, until_unix_ns, partition, offset, proof], ...],
     [[topic, partition, smallest unfinished offset], ...]]

The id is 16 bytes. Kind 0: applied. Kind 1: parked for a retry, not to be sent again before
`until_unix_ns`. Partition and offset are where the consumer received it, the proof is that it did
(16 bytes: see `outbox.proof`). Progress counts only beside a proven confirm. The record stands on
the destination's confirm topic, with the consumer's name as its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from orderchain.reasons import reason_of
from outbox.errors import BadRecord
from outbox.limits import (
    CONFIRM_RECORD_BYTES_MAX,
    CONFIRMS_MAX,
    NAME_CHARS_MAX,
    PROGRESS_MAX,
    TOPIC_CHARS_MAX,
)
from outbox.proof import PROOF_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION: Final = 1

APPLIED: Final = 0
RETRYING: Final = 1

_Int64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Confirm(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """One consumer's word on one message."""

    message_id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    kind: Annotated[int, Meta(ge=APPLIED, le=RETRYING)]
    until_unix_ns: _Int64
    """When the retry falls due; 0 for `APPLIED`."""
    partition: _Partition
    offset: _Int64
    proof: Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
    """That the consumer has received the message; made by `outbox.proof.proof_of`."""


class Progress(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """How far a consumer has come in one partition: all below `offset` is finished or parked."""

    topic: Annotated[str, Meta(min_length=1, max_length=TOPIC_CHARS_MAX)]
    partition: _Partition
    offset: _Int64
    """The smallest unfinished offset."""


class ConfirmRecord(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """What one record says."""

    version: int
    consumer: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    confirms: Annotated[list[Confirm], Meta(max_length=CONFIRMS_MAX)]
    progress: Annotated[list[Progress], Meta(max_length=PROGRESS_MAX)]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ConfirmRecord)


def encode_confirms(
    consumer: str, confirms: Sequence[Confirm], progress: Sequence[Progress] = ()
) -> bytes:
    """Return the record's value. Cut longer lists into several records: see `outbox.limits`."""
    return _encoder.encode(ConfirmRecord(VERSION, consumer, list(confirms), list(progress)))


def decode_confirms(value: bytes | None) -> ConfirmRecord:
    """Return what a record says. Raises BadRecord, and nothing else, for whatever comes."""
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
