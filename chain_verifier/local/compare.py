"""Compares two sources row by row, but only where their fingerprints differ."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from chain_verifier.config import FINDINGS_MAX
from chain_verifier.findings import Finding, Findings, Kind, gathered
from chain_verifier.local.scan import in_buckets
from chain_verifier.local.spool import SQL, open_spool
from chain_verifier.local.table import CONTENT

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from chain_verifier.bucket import Bucket
    from chain_verifier.horizon import Horizon
    from chain_verifier.local.examine import Examined
    from chain_verifier.local.table import Row, Table

_COMPARED: Final = CONTENT[2:]


def compare(
    table: Table, own: Examined, base: Table, of_base: Examined, horizon: Horizon
) -> Findings:
    """Return what `table` lacks, has too much, or holds with other content than `base`."""
    differing = _differing(own.buckets, of_base.buckets)
    if not differing:
        return Findings()
    counts: dict[Kind, int] = {}
    findings: list[Finding] = []
    with open_spool("pairs", f"{table.name} against {base.name}") as spool:
        _keep(spool, table, differing, horizon, is_base=False)
        _keep(spool, base, differing, horizon, is_base=True)
        for kind, row_id, columns in _differences(spool.execute(SQL["sorted"])):
            counts[kind] = counts.get(kind, 0) + 1
            if counts[kind] <= FINDINGS_MAX:
                found = Finding(
                    kind=kind, source=table.name, against=base.name, id=row_id, columns=columns
                )
                findings.append(found)
    return gathered(
        findings, {kind: max(0, count - FINDINGS_MAX) for kind, count in counts.items()}
    )


def _differing(one: Sequence[Bucket], other: Sequence[Bucket]) -> list[Bucket]:
    """Return the buckets, from either side, whose rows are not the same multiset."""
    left = {bucket.number: bucket for bucket in one}
    right = {bucket.number: bucket for bucket in other}
    pairs = [(left.get(n), right.get(n)) for n in sorted(left.keys() | right.keys())]
    return [
        bucket
        for here, there in pairs
        if (bucket := here or there) is not None
        and (
            here is None
            or there is None
            or (here.rows, here.fingerprint) != (there.rows, there.fingerprint)
        )
    ]


def _keep(
    spool: sqlite3.Connection,
    table: Table,
    buckets: Sequence[Bucket],
    horizon: Horizon,
    *,
    is_base: bool,
) -> None:
    ids, membership = in_buckets(buckets)
    for page in table.pages(ids):
        rows = membership.chosen(page, horizon)
        spool.executemany(SQL["pair"], (_kept(row, is_base=is_base) for row in rows))


def _kept(row: Row, *, is_base: bool) -> tuple[Any, ...]:
    _, row_id, pid, key, event_time_ns, payload = row
    # As bytes: texts of SQLite end at a NUL for some of its functions, and sort as bytes anyway.
    return row_id, is_base, pid, None if key is None else key.encode(), event_time_ns, payload


def _differences(
    rows: Iterable[tuple[Any, ...]],
) -> Iterator[tuple[Kind, int, tuple[str, ...]]]:
    """Yield the ids at which the two differ, with the kind of difference."""
    for row_id, group in groupby(rows, key=itemgetter(0)):
        sides = {is_base: _side(found) for is_base, found in groupby(group, key=itemgetter(1))}
        own, base = sides.get(0), sides.get(1)
        times = 0 if own is None else own[0]
        times_base = 0 if base is None else base[0]
        if times != times_base:
            yield Kind.LACKING if times < times_base else Kind.SURPLUS, row_id, ()
        elif own is not None and base is not None and own != base:
            yield Kind.DIFFERING, row_id, _columns(own, base)


_Side = tuple[int, tuple[Any, ...], tuple[Any, ...]]
"""How often a row stands on one side, its lowest and its highest content."""


def _side(rows: Iterable[tuple[Any, ...]]) -> _Side:
    times, lowest, highest = 0, None, ()
    for row in rows:
        times, highest = times + 1, row[2:]
        lowest = highest if lowest is None else lowest
    return times, lowest or (), highest


def _columns(own: _Side, base: _Side) -> tuple[str, ...]:
    return tuple(
        name
        for index, name in enumerate(_COMPARED)
        if own[1][index] != base[1][index] or own[2][index] != base[2][index]
    )
