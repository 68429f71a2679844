"""How the sources of one verification are scanned; the same for all, so that buckets compare."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_verifier.config import bucket_bits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chain_verifier.config import VerifyRequest

_KEY_BITS: Final = 63
"""A key is a positive bigint: Spark's literals have no unsigned type."""


class How(Struct, frozen=True, kw_only=True):
    """What every scan of one verification has in common."""

    key: int
    """Seeds every hash; drawn anew for each verification, so that no data can be made to fit."""
    bits: int
    """Buckets hold 2^bits ids."""
    leaf_bits: int
    """A damaged bucket is split down to 2^bits ids before its rows are read."""
    fingerprints: bool
    """Whether whole rows are hashed, to be compared with another source."""


def how_to_scan(request: VerifyRequest, spans: Iterable[int | None]) -> How:
    """Choose for sources that are so many ids wide; None stands for a width that is not known."""
    found = list(spans)
    known = None if None in found else max((span for span in found if span is not None), default=0)
    return How(
        key=secrets.randbits(_KEY_BITS),
        bits=request.bucket_bits or bucket_bits(known),
        leaf_bits=request.leaf_bits,
        fingerprints=len(found) > 1,
    )
