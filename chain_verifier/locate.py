"""Opens the buckets that failed, and only those, until every fault has a name.

The driver decides what to open; reading is behind `Opener`, so that this logic runs without Spark.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, Protocol

from chain_verifier.config import ROWS_OPENED_MAX
from chain_verifier.faults import Link, find_faults
from chain_verifier.findings import Finding, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chain_verifier.bucket import Bucket
    from chain_verifier.horizon import Horizon

SPLIT_BITS: Final = 10
"""A bucket is split into at most 2^10 at a time: wide buckets take several scans, not more rows."""

PIECES_MAX: Final = 65_536
"""Most pieces that one round of splitting may give; each is a row on the driver."""


class Opener(Protocol):
    """Reads parts of one source again."""

    def split(self, buckets: Sequence[Bucket], bits: int) -> list[Bucket]:
        """Return the rows of `buckets`, all of one width, in buckets of 2^bits ids."""
        ...

    def links(self, buckets: Sequence[Bucket]) -> list[Link]:
        """Return every row of `buckets`."""
        ...


def locate(
    source: str,
    buckets: Iterable[Bucket],
    horizon: Horizon,
    opener: Opener,
    leaf_bits: int,
    rows_opened_max: int = ROWS_OPENED_MAX,
) -> list[Finding]:
    """Return what keeps the rows in `buckets` from being one path from start to head.

    Opens at most `rows_opened_max` rows; damage beyond them is named by its range.
    """
    search = _Search(buckets, opener, leaf_bits, rows_opened_max)
    search.run()
    faults = find_faults(source, search.every_link(), horizon.start, horizon.head)
    return [*faults, *_ranges(source, search.given_up)]


class _Search:
    """What is known of a source so far: closed buckets, rows of opened ones, and what was too much.

    Every round opens, splits or gives up at least one closed bucket, so the search ends.
    """

    def __init__(
        self, buckets: Iterable[Bucket], opener: Opener, leaf_bits: int, rows_opened_max: int
    ) -> None:
        self.closed = sorted(buckets, key=_lower_id)
        self.links: list[Link] = []
        self.given_up: list[Bucket] = []
        self._opener = opener
        self._leaf_bits = leaf_bits
        self._rows_left = rows_opened_max

    def run(self) -> None:
        """Open what must be opened to tell every fault."""
        while wanted := self._wanted():
            taken = {(bucket.bits, bucket.number) for bucket in wanted}
            self.closed = [b for b in self.closed if (b.bits, b.number) not in taken]
            self._split([bucket for bucket in wanted if bucket.bits > self._leaf_bits])
            self._open([bucket for bucket in wanted if bucket.bits <= self._leaf_bits])
            self.closed.sort(key=_lower_id)

    def every_link(self) -> list[Link]:
        """Return rows, and one link for each bucket that was not opened."""
        whole = [Link(b.pid, b.first_id, b.last_id) for b in self.closed]
        unknown = [
            Link(b.pid, b.first_id, b.last_id, is_damaged=not b.is_whole) for b in self.given_up
        ]
        return [*self.links, *whole, *unknown]

    def _wanted(self) -> list[Bucket]:
        """Return the closed buckets that failed, or that hide a row which another one may name."""
        lower_ids = list(map(_lower_id, self.closed))
        wanted = {b.lower_id: b for b in self.closed if not b.is_whole}
        for pid in self._named():
            index = bisect_right(lower_ids, pid) - 1
            if index >= 0 and self.closed[index].hides(pid):
                wanted[lower_ids[index]] = self.closed[index]
        return [wanted[lower_id] for lower_id in sorted(wanted)]

    def _named(self) -> Iterator[int]:
        """Yield the pids that lead from one place to another."""
        for link in self.links:
            yield link.pid
        for bucket in self.closed:
            if bucket.pid < bucket.lower_id:
                yield bucket.pid

    def _split(self, buckets: Sequence[Bucket]) -> None:
        pieces_left = PIECES_MAX
        for width in sorted({bucket.bits for bucket in buckets}):
            bits = max(self._leaf_bits, width - SPLIT_BITS)
            same = [bucket for bucket in buckets if bucket.bits == width]
            count = pieces_left >> (width - bits)
            pieces_left -= min(count, len(same)) << (width - bits)
            self.given_up += same[count:]
            if same[:count]:
                self.closed += self._opener.split(same[:count], bits)

    def _open(self, buckets: Sequence[Bucket]) -> None:
        chosen: list[Bucket] = []
        for bucket in buckets:
            if bucket.rows > self._rows_left:
                self.given_up.append(bucket)
                continue
            self._rows_left -= bucket.rows
            chosen.append(bucket)
        if chosen:
            self.links += self._opener.links(chosen)


def _lower_id(bucket: Bucket) -> int:
    return bucket.lower_id


def _ranges(source: str, given_up: Sequence[Bucket]) -> Iterator[Finding]:
    """Yield the ranges that were not opened, neighbours as one."""
    first: Bucket | None = None
    last: Bucket | None = None
    for bucket in sorted(given_up, key=_lower_id):
        if first is None or last is None or bucket.lower_id != last.upper_id:
            if first is not None and last is not None:
                yield _range(source, first, last)
            first = bucket
        last = bucket
    if first is not None and last is not None:
        yield _range(source, first, last)


def _range(source: str, first: Bucket, last: Bucket) -> Finding:
    return Finding(kind=Kind.DAMAGED_RANGE, source=source, id=first.first_id, until_id=last.last_id)
