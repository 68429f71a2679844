"""How the sources of one verification are scanned, and what each turned out to hold."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_verifier.checks.bucket import Bucket, row_count
from chain_verifier.config import bucket_bits
from chain_verifier.findings import Findings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chain_verifier.config import VerifyRequest


_KEY_BITS: Final = 63
"""A key is a positive bigint: Spark's literals have no unsigned type."""


class How(Struct, frozen=True, kw_only=True):
    """What every scan of one verification has in common."""

    key: int
    """Seeds every hash; drawn for each verification, so that no data can be made to fit."""
    bits: int
    """Buckets hold 2^bits ids."""
    leaf_bits: int
    """A damaged bucket is split down to 2^bits ids before its rows are read."""
    fingerprints: bool
    """Whether whole rows are hashed, to be compared with another source."""


def how_to_scan(request: VerifyRequest, spans: Iterable[int | None]) -> How:
    """Choose for sources that are `spans` ids wide; None is a width that is not known."""
    found = list(spans)
    known = None if None in found else max((span for span in found if span is not None), default=0)
    return How(
        key=secrets.randbits(_KEY_BITS),
        bits=request.bucket_bits or bucket_bits(known),
        leaf_bits=request.leaf_bits,
        fingerprints=len(found) > 1,
    )


class Examined(Struct, frozen=True, kw_only=True):
    """One source after its scan."""

    buckets: list[Bucket]
    findings: Findings
    notes: tuple[str, ...]
    """What is no fault, but should be known."""
    rows_beyond: int
    """Rows after the head; whether they are wrong is not decided here."""
    beyond_id: int | None
    """The highest id of those."""
    is_whole: bool = False
    """The first look showed that all rows are one path, so nothing is left to look for."""

    @property
    def rows(self) -> int:
        """Rows of the chain between start and head."""
        return row_count(self.buckets)
