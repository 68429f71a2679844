"""Running digests, and the handler that keeps one where the input is no order flow."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

_encoder = msgspec.msgpack.Encoder()


def chained(digest: bytes, content: bytes) -> bytes:
    """Return the running digest after `content`.

    Unlike a hash object it can be stored at any place and taken up again; and since `digest` has a
    fixed length, no two sequences of contents share a digest.
    """
    return sha256(digest + content).digest()


class PayloadState(Struct, array_like=True, kw_only=True):
    """What `PayloadDigest` has seen."""

    payloads: int = 0
    digest: bytes = bytes(32)


class PayloadDigest:
    """Takes the place of an order book where the columns are not those of one.

    It knows the content and the order of all payloads, and nothing of what they mean.
    """

    name: ClassVar[str] = "payload digest"

    def __init__(self) -> None:
        self._state = PayloadState()

    def apply(self, payloads: Iterable[bytes]) -> None:
        """Take `payloads` into the digest, in their order."""
        digest, count = self._state.digest, 0
        for payload in payloads:
            digest = chained(digest, payload)
            count += 1
        self._state.digest = digest
        self._state.payloads += count

    def counters(self) -> dict[str, int]:
        """Return what there is to count."""
        return {"payloads": self._state.payloads}

    def dump(self) -> bytes:
        """Return the state, from which `load` goes on."""
        return _encoder.encode(self._state)

    def load(self, state: bytes) -> None:
        """Go on from a dumped state. Raises msgspec.ValidationError for anything else."""
        self._state = msgspec.msgpack.decode(state, type=PayloadState)

    def digest(self) -> str:
        """Return the digest of the state, in hexadecimal."""
        return sha256(self.dump()).hexdigest()
