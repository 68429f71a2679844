"""Buckets of a chain: what a scan shows of the rows in a range of ids, and how buckets join.

This needs no Spark: a scan returns one bucket per range, and from then on the driver decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Horizon(Struct, frozen=True, kw_only=True):
    """The part of a chain that a verification covers."""

    chain_id: int
    start: int
    """The id before the first row."""
    head: int | None
    """The id of the last row; None when only the data shows it."""

    def within(self, other: Horizon) -> Horizon:
        """Return the part that is within both."""
        heads = [head for head in (self.head, other.head) if head is not None]
        start = max(self.start, other.start)
        return Horizon(chain_id=self.chain_id, start=start, head=min(heads, default=None))


WHOLE_BITS: Final = 63
"""All ids fall into the one bucket of this width."""


class Bucket(Struct, frozen=True, kw_only=True):
    """The rows of one range of ids. Never empty."""

    bits: int
    number: int
    """The range holds the ids whose `id >> bits` is this number."""
    rows: int
    is_whole: bool
    """The rows form one path: they enter once, at `pid`, and leave once, at `last_id`."""
    pid: int
    """The lowest pid; in a whole bucket, the pid of its first row."""
    first_id: int
    last_id: int
    nulls: int
    """Rows with a NULL in a column other than id and pid."""
    fingerprint: tuple[int, int]
    """Two sums over the keyed hashes of whole rows; equal for equal multisets of rows."""

    @property
    def lower_id(self) -> int:
        """The lowest id that would fall into this bucket."""
        return self.number << self.bits

    @property
    def upper_id(self) -> int:
        """The first id after this bucket."""
        return (self.number + 1) << self.bits

    def hides(self, node: int) -> bool:
        """Whether `node`, if it is a row at all, is an inner row of this bucket."""
        return self.lower_id <= node < self.upper_id and node != self.last_id


def whole_path(rows: int, pid: int, first_id: int, last_id: int) -> Bucket:
    """Return rows as one bucket; all that is known of them is that they are one path."""
    return Bucket(
        bits=WHOLE_BITS,
        number=0,
        rows=rows,
        is_whole=True,
        pid=pid,
        first_id=first_id,
        last_id=last_id,
        nulls=0,
        fingerprint=(0, 0),
    )


def is_one_path(buckets: Sequence[Bucket], horizon: Horizon) -> bool:
    """Return whether the buckets, sorted by id, form one path from start to head.

    Each whole bucket is a path from its pid to its last id. So all buckets are one path exactly if
    each begins where the previous one ends.
    """
    at_id = horizon.start
    for bucket in buckets:
        if not bucket.is_whole or bucket.pid != at_id:
            return False
        at_id = bucket.last_id
    return horizon.head is None or at_id == horizon.head


def row_count(buckets: Iterable[Bucket]) -> int:
    """Return the number of rows; added here, since a sum in Spark could overflow."""
    return sum(bucket.rows for bucket in buckets)
