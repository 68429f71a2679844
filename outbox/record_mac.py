"""The MAC of a message's record, by which a consumer knows that its sender has made it. Pure.

A stranger who may write to a topic can put a record there that looks like a message, and name in it
any topic to confirm to. So each record of ours carries, as its header `orderchain-mac`, 16 bytes:

    destination key = BLAKE3 in its mode to derive keys, context "orderchain outbox record 1", of
                      the database's key (32 bytes) and the destination's name: 32 bytes
    common key      = BLAKE3 keyed with that, of the values of our headers destination,
                      oldest-unfinished and confirm-topic, each after its length: 32 bytes
    mac             = BLAKE3 keyed with that, the first 16 bytes, of
                      the message's id (16 bytes),
                      the lengths of confirm token, key of the record and own headers,
                      these three, and the value of the record

A length has 4 bytes, big-endian, and is -1 for what is missing. The confirm token is the value of
our header. The sender's own headers are, in their order, each the lengths of name and value, name,
value.

A destination's consumers share its key: they trust each other not to forge, but those of another
destination cannot. The key of the database itself stays with the relays.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct as Layout
from typing import TYPE_CHECKING, Final

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Sequence

MAC_BYTES: Final = 16

CACHED_MAX: Final = 1_024
"""Common keys that a consumer remembers: thousands of records share one."""

_CONTEXT: Final = "orderchain outbox record 1"
_LENGTH: Final = Layout(">i")
_LENGTHS: Final = Layout(">3i")
_TOKEN_BYTES: Final = 32
_PLAIN: Final = _LENGTHS.pack(_TOKEN_BYTES, -1, 0)
"""With a token, no key and no own headers, as most are."""


def destination_key(database_key: bytes, destination: str) -> bytes:
    """Return the key of a destination's records, which its consumers get: 32 bytes."""
    return blake3(database_key + destination.encode(), derive_key_context=_CONTEXT).digest()


def common_hash(
    key: bytes, destination: bytes, oldest_unfinished: bytes | None, confirm_topic: bytes | None
) -> blake3:
    """Return the beginning of the MACs of records whose headers begin alike.

    `key`: the destination's; it is BLAKE3 keyed with the common key, and copied for each record.
    """
    said = b"".join(map(_with_length, (destination, oldest_unfinished, confirm_topic)))
    return blake3(key=blake3(said, key=key).digest())


@lru_cache(CACHED_MAX)
def common_hashes(
    keys: tuple[bytes, ...], destination: bytes, oldest: bytes | None, topic: bytes | None
) -> tuple[blake3, ...]:
    """Return the same by each of several keys of destinations."""
    return tuple(common_hash(key, destination, oldest, topic) for key in keys)


def record_mac(
    common: blake3,
    message_id: bytes,
    token: bytes | None,
    record_key: bytes | None,
    own: Sequence[tuple[str, bytes]],
    value: bytes,
) -> bytes:
    """Return the MAC of one record; `token`: as its header has it, `own`: the sender's headers."""
    # This runs for every message. A copy costs less than a new hash, and most are of one kind.
    made = common.copy()
    if record_key is None and not own and token is not None and len(token) == _TOKEN_BYTES:
        made.update(message_id + _PLAIN + token + value)
    else:
        own_bytes = b"".join(_with_length(name.encode(), content) for name, content in own)
        lengths = _LENGTHS.pack(_length(token), _length(record_key), len(own_bytes))
        made.update(message_id + lengths + (token or b"") + (record_key or b"") + own_bytes + value)
    return made.digest(MAC_BYTES)


def _length(part: bytes | None) -> int:
    return -1 if part is None else len(part)


def _with_length(*parts: bytes | None) -> bytes:
    lengths = b"".join(_LENGTH.pack(_length(part)) for part in parts)
    return lengths + b"".join(part for part in parts if part)
