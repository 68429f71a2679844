"""Buckets of a chain: what a scan shows of ranges of ids, and how faults are found in them. Pure.

A scan returns one bucket per range of ids; from then on the driver decides. It opens the buckets
that failed, and only those, until every fault is named. An `Opener` reads, so that this runs
without Spark.

A link represents a row, or a whole bucket of rows that form one path. (A path without branches can
be merged into one link without changing any finding, since no row outside names a row inside it.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from chain_kernel.limits import ID_MAX
from chain_verifier.config import ROWS_OPENED_MAX
from chain_verifier.findings import Finding, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chain_verifier.checks.topic_frames import Ranges


class Horizon(Struct, frozen=True, kw_only=True):
    """The part of a chain that a verification covers."""

    chain_id: int
    start: int
    """The id before the first row."""
    head: int | None
    """The id of the last row; None when only the data shows it."""

    def is_before(self, row_id: int) -> bool:
        """Return whether a row is left out, at or before the start; from 0 on, none is."""
        return self.start != 0 and row_id <= self.start

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
    fingerprint: int
    """A sum over the keyed hashes of whole rows; equal for equal multisets of rows."""

    @property
    def lower_id(self) -> int:
        """The lowest id that would fall into this bucket."""
        return self.number << self.bits

    @property
    def upper_id(self) -> int:
        """The first id after this bucket."""
        return (self.number + 1) << self.bits

    def hides(self, node: int) -> bool:
        """Return whether `node`, if it is a row at all, is an inner row of this bucket."""
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
        fingerprint=0,
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


class Link(Struct, frozen=True, gc=False):
    """Rows that lead from `pid` to `last_id`: one row, or a path of rows."""

    pid: int
    first_id: int
    """Id of the row that names `pid`."""
    last_id: int
    is_damaged: bool = False
    """Represents damaged rows that were not looked at: nothing is known of what they name."""


class _Unrooted(Struct, frozen=True):
    """Rows whose pid is no row."""

    pid: int
    ids: tuple[int, ...]
    leads_on: bool
    """True if the chain continues after one of them, so that the main path must come this way."""


def find_faults(
    source: str, links: Sequence[Link], start: int, head: int | None, skips: Ranges = ()
) -> list[Finding]:
    """Return everything that keeps `links` from being one path from `start` to `head`.

    Empty exactly if they are one path. `head` None means that the path may end anywhere. Gaps
    within the ranges (after, until] of `skips` are none.
    """
    graph = _Graph(links, start, head)
    found = [
        *_not_below(source, links),
        *_duplicates(source, links),
        *_forks(source, graph),
        *_gaps_and_orphans(source, graph, skips),
    ]

    def place(finding: Finding) -> tuple[int, str]:
        places = (finding.id, finding.until_id, finding.pid)
        return next(place for place in places if place is not None), finding.kind

    return sorted(found, key=place)


class _Graph:
    """Which row names which. Rows that name no row before them are rows, but link nothing."""

    def __init__(self, links: Sequence[Link], start: int, head: int | None) -> None:
        self.start = start
        self.head = head
        self.rows = {link.last_id for link in links}
        self.nodes = sorted(self.rows | {start})
        self.children: dict[int, set[Link]] = {}
        for link in links:
            if link.pid < link.first_id and not link.is_damaged:
                self.children.setdefault(link.pid, set()).add(link)
        self.end = head if head is not None else max(self.rows, default=start)
        self._paths = sorted(
            (link.first_id, link.last_id) for link in links if link.first_id < link.last_id
        )

    def is_known(self, node: int) -> bool:
        """Return whether `node` is a row, or lies among rows that were not looked at one by one."""
        if node == self.start or node in self.rows:
            return True
        index = bisect_right(self._paths, (node, ID_MAX)) - 1
        return index >= 0 and self._paths[index][1] > node

    def leads_on(self, link: Link) -> bool:
        """Return whether the chain continues after `link`, or ends there as it should."""
        is_path = link.first_id != link.last_id
        return is_path or link.last_id in self.children or link.last_id == self.end

    def row_before(self, node: int) -> int | None:
        """Return the highest row, or the start, below `node`."""
        index = bisect_left(self.nodes, node)
        return self.nodes[index - 1] if index else None


def _not_below(source: str, links: Sequence[Link]) -> Iterator[Finding]:
    seen = {
        (link.first_id, link.pid)
        for link in links
        if link.pid >= link.first_id and not link.is_damaged
    }
    for row_id, pid in seen:
        yield Finding(kind=Kind.PID_NOT_BELOW_ID, source=source, id=row_id, pid=pid)


def _duplicates(source: str, links: Sequence[Link]) -> Iterator[Finding]:
    counts = Counter(link.last_id for link in links)
    pids: dict[int, int] = {}
    for link in links:
        if counts[link.last_id] > 1:
            pids[link.last_id] = min(link.pid, pids.get(link.last_id, link.pid))
    for row_id, pid in pids.items():
        count = counts[row_id]
        yield Finding(kind=Kind.DUPLICATE, source=source, id=row_id, pid=pid, count=count)


def _forks(source: str, graph: _Graph) -> Iterator[Finding]:
    for pid, children in graph.children.items():
        ids = tuple(sorted({child.first_id for child in children}))
        if len(ids) > 1:
            kind = Kind.SECOND_ROOT if pid == graph.start else Kind.FORK
            yield Finding(kind=kind, source=source, pid=pid, ids=ids)


def _gaps_and_orphans(source: str, graph: _Graph, skips: Ranges) -> Iterator[Finding]:
    """Separate rows whose predecessor is missing from rows that do not belong here.

    A row that names an unknown pid is the far end of a gap if no row names the row before that pid:
    the chain breaks off there. If there are several such rows, only one can continue the chain
    there; the others are orphans.
    """
    by_break: dict[int | None, list[_Unrooted]] = {}
    for unrooted in _unrooted(graph):
        by_break.setdefault(graph.row_before(unrooted.pid), []).append(unrooted)
    for after_id, candidates in by_break.items():
        candidates.sort(key=lambda one: (not one.leads_on, one.pid))
        if after_id is not None and after_id not in graph.children:
            until_id = candidates.pop(0).pid
            if not any(after <= after_id and until_id <= until for after, until in skips):
                yield Finding(kind=Kind.GAP, source=source, after_id=after_id, until_id=until_id)
        for orphan in candidates:
            for row_id in orphan.ids:
                yield Finding(kind=Kind.ORPHAN, source=source, id=row_id, pid=orphan.pid)


def _unrooted(graph: _Graph) -> Iterator[_Unrooted]:
    for pid, children in graph.children.items():
        if not graph.is_known(pid):
            ids = tuple(sorted({child.first_id for child in children}))
            yield _Unrooted(pid, ids, any(map(graph.leads_on, children)))
    if graph.head is not None and not graph.is_known(graph.head):
        yield _Unrooted(graph.head, (), leads_on=True)


SPLIT_BITS: Final = 10
"""A bucket is split into at most 2^10 at a time: wide buckets take more scans, not more rows."""

PIECES_MAX: Final = 65_536
"""Maximum number of pieces per round of splitting; each is a row on the driver."""


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
    skips: Ranges = (),
) -> list[Finding]:
    """Return what keeps the rows in `buckets` from being one path from start to head.

    Opens at most `rows_opened_max` rows; damage beyond them is named by its range.
    """
    search = _Search(buckets, opener, leaf_bits, rows_opened_max)
    search.run()
    faults = find_faults(source, search.every_link(), horizon.start, horizon.head, skips)
    return [*faults, *_ranges(source, search.given_up)]


class _Search:
    """State of a source so far: closed buckets, rows of opened ones, and those given up.

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
        """Open what must be opened to name every fault."""
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
        """Return the closed buckets that failed, or that hide a row that another one may name."""
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
    """Yield the ranges that were not opened, adjacent ones as one."""
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
