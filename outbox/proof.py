"""The proof that the sender of a confirm has received the message.

With each message goes a token, which its sender makes from a key of its own and keeps nowhere. Its
consumer proves by the token that it has the message, and does not show it: so neither a stranger
who can write to the confirm topic, nor one who can read it, too, can confirm what was not received.

    token = keyed BLAKE3 of the 16 bytes of the message's id, by the sender's key: 16 bytes
    proof = BLAKE3 of the token, the kind (1 byte), `until_unix_ns` (8 bytes, big-endian) and the
            consumer's name in ASCII: the first 16 bytes
"""

from __future__ import annotations

import hmac
from struct import Struct as Layout
from typing import Final

from blake3 import blake3

TOKEN_BYTES: Final = 16
PROOF_BYTES: Final = 16
KEY_BYTES: Final = 32

_WHAT: Final = Layout(">Bq")


def token_of(key: bytes, message_id: bytes) -> bytes:
    """Return the token of a message, by the 16 bytes of its id."""
    return blake3(message_id, key=key).digest(TOKEN_BYTES)


def proof_of(token: bytes, consumer: str, kind: int, until_unix_ns: int) -> bytes:
    """Return the proof of what a consumer says of the message with that token."""
    said = token + _WHAT.pack(kind, until_unix_ns) + consumer.encode()
    return blake3(said).digest(PROOF_BYTES)


def is_proven(
    key: bytes, message_id: bytes, consumer: str, kind: int, until_unix_ns: int, proof: bytes
) -> bool:
    """Say whether `proof` was made by somebody who has received the message."""
    expected = proof_of(token_of(key, message_id), consumer, kind, until_unix_ns)
    return hmac.compare_digest(expected, proof)
