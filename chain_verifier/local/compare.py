"""Compares two sources row by row, but only where their fingerprints differ."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from chain_verifier.findings import Finding, Findings, Kind, collected
from chain_verifier.local.scan import in_buckets
from chain_verifier.local.spool import SQL, open_spool
from chain_verifier.local.table import CONTENT

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from chain_verifier.checks.bucket import Bucket, Horizon
    from chain_verifier.local.table import LocalTable, Row
    from chain_verifier.local.topic import LocalTopicTable

_COMPARED: Final = CONTENT[2:]


def compare(
    table: LocalTable,
    base: LocalTable,
    differing: Sequence[Bucket],
    horizon: Horizon,
    skips: Sequence[tuple[int, int]] = (),
) -> Findings:
    """Return what `table` lacks, has in surplus, or holds otherwise in the `differing` buckets."""

    def look() -> Iterator[Finding]:
        with open_spool("pairs", f"{table.name} against {base.name}") as spool:
            _keep(spool, table, differing, horizon, is_base=False)
            _keep(spool, base, differing, horizon, is_base=True)
            for found in _findings(spool, table.name, base.name):
                if found.kind is not Kind.LACKING or not _is_in(found.id or 0, skips):
                    yield found

    return collected(look)


def strays(topic: LocalTopicTable, base: LocalTable) -> Findings:
    """Return the rows of forged frames that `base` does not hold, or holds with other content.

    The rows to look for are written to disk first, then `base` is read once.
    """
    if not topic.has_forged:
        return Findings()

    def look() -> Iterator[Finding]:
        with open_spool("pairs", f"{topic.name} against {base.name}") as spool:
            spool.execute(SQL["wanted"])
            for page in topic.forged_pages():
                spool.executemany(SQL["want"], ((row[1],) for row in page))
                spool.executemany(SQL["pair"], (_kept(row, is_base=False) for row in page))
            first_id, last_id = spool.execute(SQL["wanted_range"]).fetchone()
            for page in base.pages((first_id, last_id + 1)):
                own = (row for row in page if row[0] == topic.chain_id and row[1] is not None)
                values = ((*_kept(row, is_base=True), row[1]) for row in own)
                spool.executemany(SQL["pair_if_wanted"], values)
            spool.execute(SQL["without_repeats"])
            for found in _findings(spool, topic.name, base.name):
                if found.kind is not Kind.LACKING:
                    yield found

    return collected(look)


def _is_in(row_id: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(after < row_id <= until for after, until in ranges)


def _keep(
    spool: sqlite3.Connection,
    table: LocalTable,
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
    # As bytes: for some functions of SQLite, texts end at a NUL; and they sort as bytes anyway.
    return row_id, is_base, pid, None if key is None else key.encode(), event_time_ns, payload


def _findings(spool: sqlite3.Connection, source: str, against: str) -> Iterator[Finding]:
    for kind, row_id, columns in _differences(spool.execute(SQL["sorted"])):
        yield Finding(kind=kind, source=source, against=against, id=row_id, columns=columns)


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
"""How often a row occurs on one side, its lowest and its highest content."""


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
