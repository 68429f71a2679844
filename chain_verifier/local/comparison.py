"""Compares two sources row by row in the order of ids, up to the first difference."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from chain_kernel.errors import SourceBroken
from chain_verifier.checks.neighbours import gathered
from chain_verifier.findings import Finding, Findings, Kind
from chain_verifier.local.source_check import placed_rows
from chain_verifier.local.table import SQL, open_scratch
from chain_verifier.sources.content import CONTENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chain_verifier.checks.buckets import Bucket, Horizon
    from chain_verifier.local.table import LocalTable
    from chain_verifier.local.topic import LocalTopicTable

    _Rows = Iterator[tuple[int, "_Content"]]

_Content = tuple[Any, ...]

_COMPARED: Final = CONTENT[2:]


def compare(
    table: LocalTable,
    base: LocalTable,
    differing: Sequence[Bucket],
    horizon: Horizon,
) -> Findings:
    """Return the first row that `table` lacks, has in surplus, or holds with other content."""
    for finding in _differences(_in_order(table, horizon), _in_order(base, horizon)):
        is_lacking = finding["kind"] is Kind.LACKING
        if not is_lacking or not any(low < finding["id"] <= high for low, high in table.may_lack):
            return gathered([Finding(source=table.name, against=base.name, **finding)])
    return Findings()


def forged_findings(topic: LocalTopicTable, base: LocalTable, horizon: Horizon) -> Findings:
    """Return the first row of a forged frame that `base` does not hold with the same content."""
    if not topic.has_forged:
        return Findings()
    with open_scratch("contents", topic.name) as scratch:
        rows = ((row[1], _packed(row[2:])) for row in topic.forged_rows() if row[1] > horizon.start)
        scratch.executemany(SQL["keep_content"], rows)
        (first_id,) = scratch.execute(SQL["lowest"]).fetchone()
        if first_id is None:
            return Findings()
        near = replace(horizon, start=first_id - 1, head=None)
        forged = _unpacked(scratch.execute(SQL["different_contents"]))
        for finding in _differences(forged, _in_order(base, near), to_end_of_base=False):
            if finding["kind"] is not Kind.LACKING:
                return gathered([Finding(source=topic.name, against=base.name, **finding)])
    return Findings()


def _in_order(table: LocalTable, horizon: Horizon) -> _Rows:
    """Yield the rows between start and head in the order of ids; through a table on disk where the
    source has another one. Raises SourceBroken.
    """
    if not table.is_sorted:
        with open_scratch("contents", table.name) as scratch:
            rows = ((row[1], _packed(row[2:])) for row in placed_rows(table, horizon))
            scratch.executemany(SQL["keep_content"], rows)
            yield from _unpacked(scratch.execute(SQL["contents_in_order"]))
        return
    at_id = horizon.start
    for row in placed_rows(table, horizon):
        if row[1] <= at_id:
            raise SourceBroken(table.name, "it changed while it was being read")
        at_id = row[1]
        yield at_id, row[2:]


def _packed(content: _Content) -> bytes:
    return msgspec.msgpack.encode(content)


def _unpacked(rows: Iterable[tuple[int, bytes]]) -> _Rows:
    for row_id, content in rows:
        yield row_id, tuple(msgspec.msgpack.decode(content))


def _differences(own: _Rows, base: _Rows, *, to_end_of_base: bool = True) -> Iterator[Any]:
    """Yield what each id at which the two differ is found as."""
    ours, theirs = _by_id(own), _by_id(base)
    one, other = next(ours, None), next(theirs, None)
    while one is not None or (other is not None and to_end_of_base):
        row_id = min(each[0] for each in (one, other) if each is not None)
        left = one[1] if one is not None and one[0] == row_id else _NONE
        right = other[1] if other is not None and other[0] == row_id else _NONE
        if left.times < right.times:
            yield {"kind": Kind.LACKING, "id": row_id}
        elif left.times > right.times:
            yield {"kind": Kind.SURPLUS, "id": row_id}
        elif left != right:
            sides = zip(_COMPARED, zip(*left[1:], *right[1:], strict=True), strict=True)
            names = tuple(name for name, (a, b, c, d) in sides if (a, b) != (c, d))
            yield {"kind": Kind.DIFFERING, "id": row_id, "columns": names}
        one = next(ours, None) if left.times else one
        other = next(theirs, None) if right.times else other


class _Side(NamedTuple):
    """Count of an id in one source, with its lowest and its highest content."""

    times: int
    lowest: _Content
    highest: _Content


_NONE: Final = _Side(0, (), ())


def _by_id(rows: _Rows) -> Iterator[tuple[int, _Side]]:
    """Yield each id with its contents, which come in one order."""
    for row_id, group in groupby(rows, key=itemgetter(0)):
        times, lowest, highest = 0, None, ()
        for _, content in group:
            times, highest = times + 1, content
            lowest = content if lowest is None else lowest
        yield row_id, _Side(times, lowest or (), highest)
