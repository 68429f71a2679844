"""Checks one source against the theorem, and names what is wrong where it does not hold.

`node_hash` is the keyed hash of a node, as Spark's `xxhash64(key, node)` gives it, for the few
nodes that the driver adds to the sums of the executors. It is pure.

The first look at a source checks whether its rows are one path as a whole: one sum over all rows,
without buckets. Most chains are one path, and then there is nothing to locate.

Rows that are known to form a path count as one edge: the hashes of the ids inside it would be added
on one side and subtracted on the other. The theorem, and the odds of a collision:
`docs/verification.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.checks.bucket import is_one_path, row_count, whole_path
from chain_verifier.checks.locate import locate
from chain_verifier.findings import Findings, gathered, joined
from chain_verifier.scan_plan import Examined
from chain_verifier.spark.disorder import rows_out_of_order
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.row_lookup import RowOpener, foreign_rows, rows_with_null
from chain_verifier.spark.scan import (
    BEYOND_ROWS,
    FOREIGN_ROWS,
    MALFORMED_ROWS,
    UNPLACED_ROWS,
    Scan,
    is_one_ordered_path,
    looked_at,
    scan,
)
from chain_verifier.spark.sources.database import DatabaseTable
from chain_verifier.spark.sources.journal import JournalTable
from chain_verifier.spark.sources.table import HAS_NULL, MALFORMED, ROWS
from orderchain.errors import InputError, SourceBroken
from orderchain.text import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from chain_verifier.checks.bucket import Bucket, Horizon
    from chain_verifier.scan_plan import How
    from chain_verifier.spark.sources.table import Table


_BITS: Final = 64
_MASK: Final = 2**_BITS - 1
_PRIMES: Final = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
"""The five of XXH64."""

_SPARK_SEED: Final = 42
_LONG_BYTES: Final = 8


def node_hash(key: int, node: int) -> int:
    """Return the hash of `node` under `key`, both 64 bits wide, as a number from 0 to 2^64 - 1."""
    return _hash_long(node, _hash_long(key, _SPARK_SEED))


def _hash_long(value: int, seed: int) -> int:
    """XXH64 of the eight bytes of `value`."""
    p1, p2, p3, p4, p5 = _PRIMES
    mixed = (_rotated((value * p2) & _MASK, 31) * p1) & _MASK
    found = ((seed + p5 + _LONG_BYTES) & _MASK) ^ mixed
    found = (_rotated(found, 27) * p1 + p4) & _MASK
    found = ((found ^ (found >> 33)) * p2) & _MASK
    found = ((found ^ (found >> 29)) * p3) & _MASK
    return found ^ (found >> 32)


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (_BITS - bits))) & _MASK


_PARTS: Final = ("surplus_low", "surplus_middle", "surplus_high")
_SHIFTS: Final = (0, 21, 42)
_PART_MASK: Final = 2**21 - 1
"""Sums are taken of the lower 21, the middle 21 and the upper 22 bits of a hash: in ANSI mode a sum
of whole hashes overflows, and a sum of halves could overflow from 2^31 rows on, which a chain may
have. A sum of 22 bits cannot overflow below 2^41 rows."""

KEY: Final = "hash_key"
_KEY_QUERY: Final = "SELECT * FROM VALUES (CAST(:key AS BIGINT)) AS keys (hash_key)"
"""A table of values: Spark would turn a mere expression into a literal."""


def whole_chain(paths: DataFrame, horizon: Horizon, key: int) -> Bucket | None:
    """Return all `paths` as one bucket if they are one path from start to head, and nothing else.

    None means that this is not proven: the rows must be looked at in buckets. Without a row, the
    result is None, too.
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

    As a literal, it would be in the code that Spark compiles. Every run would then compile again
    and run cold, which took 0.3 s per run.
    """
    return rows.crossJoin(F.broadcast(rows.sparkSession.sql(_KEY_QUERY, {"key": key})))


def _sums(horizon: Horizon, *, has_rows: bool) -> list[Column]:
    """Return what a path is known by. Only `sound` rows count; one other row fails the whole."""
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
    return [low.bitwiseAND(F.lit(_PART_MASK)), middle.bitwiseAND(F.lit(_PART_MASK)), high]


def _is_balanced(found: Row, key: int) -> bool:
    """Return whether ids plus {lowest pid} equal pids plus {highest id}, by all sums."""
    leave, enter = node_hash(key, found["last_id"]), node_hash(key, found["pid"])
    due = [_part(leave, shift) - _part(enter, shift) for shift in _SHIFTS]
    return [found[name] for name in _PARTS] == due


def _part(hashed: int, shift: int) -> int:
    part = hashed >> shift
    return part if shift == _SHIFTS[-1] else part & _PART_MASK


def examine(table: Table, horizon: Horizon, how: How) -> Examined:
    """Scan one source, and locate its faults if there are any.

    Raises InputError for content that belongs to no chain, SourceBroken when the source cannot be
    read to its end or changes between two looks.
    """
    with as_broken(table.name):
        # Positions and fingerprints are kept per bucket in any case.
        if not table.has_positions and not how.fingerprints:
            paths = table.paths if isinstance(table, DatabaseTable) else table.rows
            whole = whole_chain(paths, horizon, how.key)
            if whole is not None:
                return _faultless(whole)
        return _examine_buckets(table, horizon, how)


def _faultless(whole: Bucket) -> Examined:
    return Examined(
        buckets=[whole],
        findings=Findings(),
        notes=(),
        rows_beyond=0,
        beyond_id=None,
        is_whole=True,
    )


def _examine_buckets(table: Table, horizon: Horizon, how: How) -> Examined:
    found = scan(
        table.rows,
        horizon,
        how.bits,
        how.key,
        positions=table.has_positions,
        fingerprints=how.fingerprints,
    )
    notes = _notes_on_end(table, found)
    _require_own_rows(table, horizon, found)
    return Examined(
        buckets=found.buckets,
        findings=joined(_findings(table, horizon, how, found)),
        notes=notes,
        rows_beyond=found.outside.get(BEYOND_ROWS, 0),
        beyond_id=found.beyond_id,
    )


def _notes_on_end(table: Table, found: Scan) -> tuple[str, ...]:
    """Separate an incomplete last line, which a crash may leave, from lines that are no rows."""
    count = found.outside.get(MALFORMED_ROWS, 0)
    if not count or not isinstance(table, JournalTable):
        return ()
    is_behind_all = found.end is None or (found.malformed_at or (0, 0)) > found.end
    if count == 1 and is_behind_all and table.may_end_torn():
        return ("the last line is incomplete, and was left out",)
    raise table.malformed_error()


def _require_own_rows(table: Table, horizon: Horizon, found: Scan) -> None:
    """Refuse a source that holds rows, but none of this chain: it is the wrong one."""
    own = row_count(found.buckets) + found.outside.get(BEYOND_ROWS, 0)
    others = found.outside.get(FOREIGN_ROWS, 0) + found.outside.get(UNPLACED_ROWS, 0)
    if others and not own:
        raise InputError(
            table.name,
            f"{counted(others, 'row')}, none of chain {horizon.chain_id}",
            "rows of the chain",
        )


def _findings(table: Table, horizon: Horizon, how: How, found: Scan) -> list[Findings]:
    return [
        _faults(table, horizon, how, found),
        _nulls(table, horizon, found),
        _foreign(table, horizon, found),
    ]


def _faults(table: Table, horizon: Horizon, how: How, found: Scan) -> Findings:
    if not table.has_positions:
        return _link_faults(table, horizon, how, found.buckets)
    if is_one_ordered_path(found.stretches, horizon):
        return Findings()
    # It is a wrong set of rows or a wrong order: to find out which, each is checked alone.
    by_id = scan(table.rows, horizon, how.bits, how.key, positions=False, fingerprints=False)
    faults = _link_faults(table, horizon, how, by_id.buckets)
    return joined([faults, rows_out_of_order(table.name, table.rows, horizon)])


def _link_faults(table: Table, horizon: Horizon, how: How, buckets: list[Bucket]) -> Findings:
    if is_one_path(buckets, horizon):
        return Findings()
    opener = RowOpener(table.rows, horizon, how.key)
    faults = locate(table.name, buckets, horizon, opener, how.leaf_bits)
    if not faults:
        raise SourceBroken(table.name, "it changed while it was being read")
    return gathered(faults)


def _nulls(table: Table, horizon: Horizon, found: Scan) -> Findings:
    count = sum(bucket.nulls for bucket in found.buckets) + found.outside.get(UNPLACED_ROWS, 0)
    if not count:
        return Findings()
    return rows_with_null(table.name, table.rows, horizon, count)


def _foreign(table: Table, horizon: Horizon, found: Scan) -> Findings:
    count = found.outside.get(FOREIGN_ROWS, 0)
    if not count:
        return Findings()
    return foreign_rows(table.name, table.rows, horizon, count)
