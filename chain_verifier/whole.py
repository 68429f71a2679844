"""The first look at a source: are its rows one path as a whole? One sum over all, without buckets.

Rows that are known to form a path count as one edge: the hashes of the ids within would be added on
one side and taken off on the other.

Most chains are, and then there is nothing to locate. The theorem, and the odds of a collision:
`docs/verification.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.bucket import is_one_path, whole_path
from chain_verifier.node_hash import node_hash
from chain_verifier.scan import looked_at
from chain_verifier.sources.table import HAS_NULL, MALFORMED, ROWS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from chain_verifier.bucket import Bucket
    from chain_verifier.horizon import Horizon

_PARTS: Final = ("surplus_low", "surplus_middle", "surplus_high")
_SHIFTS: Final = (0, 21, 42)
_MASK: Final = 2**21 - 1
"""Sums are taken of the lower 21, the middle 21 and the upper 22 bits of a hash: in ANSI mode a sum
of whole hashes overflows, and one of halves could from 2^31 rows on, which a chain may have. A sum
of 22 bits cannot below 2^41."""

KEY: Final = "hash_key"
_KEY_QUERY: Final = "SELECT * FROM VALUES (CAST(:key AS BIGINT)) AS keys (hash_key)"
"""A table of values: of a mere expression Spark would make a literal again."""


def whole_chain(paths: DataFrame, horizon: Horizon, key: int) -> Bucket | None:
    """Return all `paths` as one bucket if they are one path from start to head, and nothing else.

    None means that this is not shown: the rows have to be looked at in buckets. Without a row it
    is None, too.
    """
    has_rows = ROWS in paths.columns
    sums = _sums(horizon, has_rows=has_rows)
    found = looked_at(with_key(paths, key), horizon).agg(*sums).collect()[0]
    if not found["rows"] or found["sound"] != found["rows"] or not _is_balanced(found, key):
        return None
    bucket = whole_path(found["rows"], found["pid"], found["first_id"], found["last_id"])
    return bucket if is_one_path([bucket], horizon) else None


def with_key(rows: DataFrame, key: int) -> DataFrame:
    """Add the key as a column, by a join with one row.

    As a literal it would stand in the code that Spark compiles, and every run would compile anew
    and run cold, which was 0.3 s a run.
    """
    return rows.crossJoin(F.broadcast(rows.sparkSession.sql(_KEY_QUERY, {"key": key})))


def _sums(horizon: Horizon, *, has_rows: bool) -> list[Column]:
    """Return what a path is known by. `sound` rows count; one that is not spoils the whole."""
    row_id, pid = F.col("id"), F.col("pid")
    is_own = ~F.col(MALFORMED) & ~F.col(HAS_NULL) & (F.col("chain_id") == horizon.chain_id)
    # A NULL counts as not sound, so that no NULL can hide from the sums.
    is_sound = is_own & (pid < row_id)
    entering, leaving = F.xxhash64(KEY, "pid"), F.xxhash64(KEY, "id")
    return [
        (F.sum(ROWS) if has_rows else F.count(F.lit(1))).alias("rows"),
        (F.sum(F.when(is_sound, F.col(ROWS))) if has_rows else F.count_if(is_sound)).alias("sound"),
        F.min("first_id" if has_rows else "id").alias("first_id"),
        F.max("id").alias("last_id"),
        F.min("pid").alias("pid"),
        *(F.sum(surplus).alias(name) for name, surplus in _surpluses(leaving, entering)),
    ]


def _surpluses(leaving: Column, entering: Column) -> list[tuple[str, Column]]:
    pairs = zip(_PARTS, _parts_of(leaving), _parts_of(entering), strict=True)
    return [(name, leave - enter) for name, leave, enter in pairs]


def _parts_of(hashed: Column) -> list[Column]:
    low, middle, high = (F.shiftrightunsigned(hashed, shift) for shift in _SHIFTS)
    return [low.bitwiseAND(F.lit(_MASK)), middle.bitwiseAND(F.lit(_MASK)), high]


def _is_balanced(found: Row, key: int) -> bool:
    """Return whether ids plus {lowest pid} equal pids plus {highest id}, by all sums."""
    leave, enter = node_hash(key, found["last_id"]), node_hash(key, found["pid"])
    due = [_part(leave, shift) - _part(enter, shift) for shift in _SHIFTS]
    return [found[name] for name in _PARTS] == due


def _part(hashed: int, shift: int) -> int:
    part = hashed >> shift
    return part if shift == _SHIFTS[-1] else part & _MASK
