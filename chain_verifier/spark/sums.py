"""Sums of keyed hashes: whether rows are one path, and whether two sets of rows are equal.

The same for a whole chain, a bucket of ids and a key; without sort, join or shuffle of rows. The
theorem, with its proof and the odds of a collision: `docs/verification.md`.

Rows that are known to form a path count as one edge: the hashes of the ids inside it would be added
on one side and subtracted on the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.sources.content import CONTENT
from chain_verifier.spark.table import POSITION, ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row

KEY: Final = "hash_key"
_KEY_QUERY: Final = "SELECT * FROM VALUES (CAST(:key AS BIGINT)) AS keys (hash_key)"
"""A table of values: Spark would turn a mere expression into a literal."""

PART: Final = "sum_part"
_PART_BITS: Final = 28
"""In ANSI mode a sum of whole hashes overflows. So halves are summed, of at most 2^28 rows at a
time, and then the sums of these parts, as decimals: 30 digits are enough for 2^63 rows."""

_HALF_BITS: Final = 32
_LOW_HALF: Final = 2**_HALF_BITS - 1
_SURPLUS: Final = ("surplus_low", "surplus_high")
_PRINT: Final = ("print_low", "print_high")
_OF_PARTS: Final[dict[str, Any]] = {
    KEY: F.max,
    "first_id": F.min,
    "last_id": F.max,
    "pid": F.min,
    "first_position": F.min,
    "last_position": F.max,
}
"""Ways in which columns of parts become one; all others are summed."""

_DIGEST_BITS: Final = 256
_TEXTS: Final = ("key", "payload")
_NUMBERS: Final = tuple(name for name in CONTENT if name not in _TEXTS)
_NO_VALUE: Final = "-"


def summed(
    rows: DataFrame,
    key: int,
    by: Sequence[str] = (),
    *,
    counts: Mapping[str, Column],
    positions: bool = False,
    fingerprints: bool = False,
) -> DataFrame:
    """Return one row per group: `rows`, `first_id`, `last_id`, the lowest `pid`, `is_balanced`.

    `is_balanced` says whether ids plus {lowest pid} equal pids plus {highest id}. `counts` are
    numbers of rows for which conditions hold. With `positions`, a node is hashed together with the
    place where the next row must be, and the first and the last position are known. With
    `fingerprints`, `fingerprint_of` gives a sum over whole rows. `key` seeds every hash.
    """
    place = F.col(POSITION)
    hashes = {
        "id_hash": _node_hash(F.col("id"), place + 1 if positions else None),
        "pid_hash": _node_hash(F.col("pid"), place if positions else None),
        PART: F.shiftright(F.monotonically_increasing_id(), _PART_BITS),
    }
    hashed = with_key(rows, key).withColumns(
        hashes | ({"row_hash": _row_hash()} if fingerprints else {})
    )
    has_paths = ROWS in rows.columns
    # For ids and pids, only the difference of their sums counts.
    surplus = zip(_SURPLUS, _halves(F.col("id_hash")), _halves(F.col("pid_hash")), strict=True)
    prints = zip(_PRINT, _halves(F.col("row_hash")), strict=True) if fingerprints else ()
    sums = [
        F.max(KEY).alias(KEY),
        (F.sum(ROWS) if has_paths else F.count(F.lit(1))).alias("rows"),
        F.min("first_id" if has_paths else "id").alias("first_id"),
        F.max("id").alias("last_id"),
        F.min("pid").alias("pid"),
        *(F.count_if(condition).alias(name) for name, condition in counts.items()),
        *(F.sum(leaving - entering).alias(name) for name, leaving, entering in surplus),
        *(F.sum(half).alias(name) for name, half in prints),
    ]
    if positions:
        sums += [F.min(POSITION).alias("first_position"), F.max(POSITION).alias("last_position")]
    found = totals(hashed.groupBy(*by, PART).agg(*sums), by)
    entry = _node_hash(F.col("pid"), F.col("first_position") if positions else None)
    leave = _node_hash(F.col("last_id"), F.col("last_position") + 1 if positions else None)
    low, high = (
        F.col(name) == leaving - entering
        for name, leaving, entering in zip(_SURPLUS, _halves(leave), _halves(entry), strict=True)
    )
    return found.withColumn("is_balanced", low & high)


def totals(parts: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the sums of groups, given those of the parts of each."""
    columns = []
    for name in parts.columns:
        if name in _SURPLUS or name in _PRINT:
            columns.append(F.sum(F.col(name).cast("decimal(20,0)")).alias(name))
        elif name not in by and name != PART:
            columns.append(_OF_PARTS.get(name, F.sum)(name).alias(name))
    return parts.groupBy(*by).agg(*columns)


def fingerprint_of(found: Row) -> int:
    """Return the sum over the hashes of whole rows."""
    low, high = (int(found[name]) for name in _PRINT)
    return low + (high << _HALF_BITS)


def with_key(rows: DataFrame, key: int) -> DataFrame:
    """Add the key as a column, by a join with one row.

    As a literal, it would be in the code that Spark compiles. Every run would then compile again
    and run cold, which took 0.3 s per run.
    """
    return rows.crossJoin(F.broadcast(rows.sparkSession.sql(_KEY_QUERY, {"key": key})))


def _halves(hashed: Column) -> tuple[Column, Column]:
    return hashed.bitwiseAND(F.lit(_LOW_HALF)), F.shiftrightunsigned(hashed, _HALF_BITS)


def _node_hash(node: Column, place: Column | None) -> Column:
    return F.xxhash64(KEY, node, *([] if place is None else [place]))


def _row_hash() -> Column:
    """Return the hash of a whole row: keyed, over a digest for which two rows cannot be found.

    xxHash64 alone is not enough: whatever its key, one can construct two texts of 16 bytes that
    collide. (No two single numbers, such as ids, collide under one key.) The digest is of numbers,
    lengths, then texts: different for any two rows. A NULL differs from every value.
    """
    lengths = [F.octet_length(name).cast("bigint") for name in _TEXTS]
    numbers = [*(F.col(name).cast("bigint") for name in _NUMBERS), *lengths]
    shown = [F.coalesce(F.hex(number), F.lit(_NO_VALUE)) for number in numbers]
    texts = [F.coalesce(F.col(name).cast("binary"), F.lit(b"")) for name in _TEXTS]
    whole = F.concat(F.concat_ws(" ", *shown, F.lit("")).cast("binary"), *texts)
    return F.xxhash64(KEY, F.sha2(whole, _DIGEST_BITS))
