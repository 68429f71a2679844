"""Names what is wrong with a set of links. Pure: links in, findings out.

A link stands for a row, or for a whole bucket of rows that form one path (a path without branches
may be drawn together into one link without changing any finding, since no row outside names one
inside it).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from chain_verifier.findings import Finding, Kind
from orderchain.limits import ID_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Link(Struct, frozen=True, gc=False):
    """Rows that lead from `pid` to `last_id`: one row, or a path of them."""

    pid: int
    first_id: int
    """Id of the row that names `pid`."""
    last_id: int
    is_damaged: bool = False
    """Stands for damaged rows that were not looked at: nothing is known of what they name."""


class _Unrooted(Struct, frozen=True):
    """Rows whose pid is no row."""

    pid: int
    ids: tuple[int, ...]
    leads_on: bool
    """Whether the chain goes on behind one of them, so that the main path must come this way."""


def find_faults(source: str, links: Sequence[Link], start: int, head: int | None) -> list[Finding]:
    """Return everything that keeps `links` from being one path from `start` to `head`.

    Empty exactly if they are one. `head` None means that the path may end anywhere.
    """
    graph = _Graph(links, start, head)
    found = [
        *_not_below(source, links),
        *_duplicates(source, links),
        *_forks(source, graph),
        *_gaps_and_orphans(source, graph),
    ]
    return sorted(found, key=_place)


def _place(finding: Finding) -> tuple[int, str]:
    places = (finding.id, finding.until_id, finding.pid)
    return next(place for place in places if place is not None), finding.kind


class _Graph:
    """Who names whom. Rows that do not name one before them are rows, but link nothing."""

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
        """Whether `node` is a row, or lies among rows that were not looked at one by one."""
        if node == self.start or node in self.rows:
            return True
        index = bisect_right(self._paths, (node, ID_MAX)) - 1
        return index >= 0 and self._paths[index][1] > node

    def leads_on(self, link: Link) -> bool:
        """Whether the chain goes on behind `link`, or ends there as it should."""
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
    for row_id, count in counts.items():
        if count > 1:
            yield Finding(kind=Kind.DUPLICATE, source=source, id=row_id, count=count)


def _forks(source: str, graph: _Graph) -> Iterator[Finding]:
    for pid, children in graph.children.items():
        ids = tuple(sorted({child.first_id for child in children}))
        if len(ids) > 1:
            kind = Kind.SECOND_ROOT if pid == graph.start else Kind.FORK
            yield Finding(kind=kind, source=source, pid=pid, ids=ids)


def _gaps_and_orphans(source: str, graph: _Graph) -> Iterator[Finding]:
    """Tell rows whose predecessor is missing from rows that do not belong here.

    A row that names an unknown pid is the far end of a gap if the row before that pid is named by
    nobody: there the chain breaks off. Of several such rows only one can go on where it broke off;
    the others are orphans.
    """
    by_break: dict[int | None, list[_Unrooted]] = {}
    for unrooted in _unrooted(graph):
        by_break.setdefault(graph.row_before(unrooted.pid), []).append(unrooted)
    for after_id, candidates in by_break.items():
        candidates.sort(key=lambda one: (not one.leads_on, one.pid))
        if after_id is not None and after_id not in graph.children:
            gap = candidates.pop(0)
            yield Finding(kind=Kind.GAP, source=source, after_id=after_id, until_id=gap.pid)
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
