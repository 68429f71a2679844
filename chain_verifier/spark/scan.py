"""The one scan: sums per bucket of ids, and the rows that belong to no bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.checks.buckets import Bucket
from chain_verifier.spark.sums import fingerprint_of, summed
from chain_verifier.spark.table import BLOCK, HAS_NULL, MALFORMED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row

    from chain_verifier.checks.buckets import Horizon


# Rows that no bucket can hold are counted under numbers that `id >> bits` never gives.
_OUTSIDE: Final = -(2**63)
MALFORMED_ROWS: Final = _OUTSIDE
FOREIGN_ROWS: Final = _OUTSIDE + 1
"""Rows of another chain."""
UNPLACED_ROWS: Final = _OUTSIDE + 2
"""Rows without id, pid or chain."""
BEYOND_ROWS: Final = _OUTSIDE + 3
"""Rows after the head."""


class Stretch(Struct, frozen=True, kw_only=True):
    """The rows of a bucket that are in one block of a file."""

    bucket: Bucket
    """Whole if each row comes right after the one that its pid names."""
    block: int
    first_position: int
    last_position: int


class Scan(Struct, frozen=True, kw_only=True):
    """Results of one scan."""

    buckets: list[Bucket]
    """Sorted by id. For a source with positions, `is_whole` is not known, and False."""
    stretches: list[Stretch]
    """Sorted by position; empty for a source without positions."""
    outside: Mapping[int, int]
    """Rows counted under `MALFORMED_ROWS`, `FOREIGN_ROWS`, `UNPLACED_ROWS`, `BEYOND_ROWS`."""
    beyond_id: int | None
    """The highest id after the head."""


def class_of(horizon: Horizon, bits: int) -> Column:
    """Return the number of the bucket that a row falls into, or of its class outside of buckets."""
    row_id = F.col("id")
    found = (
        F.when(F.col(MALFORMED), F.lit(MALFORMED_ROWS))
        .when(F.col("chain_id") != horizon.chain_id, F.lit(FOREIGN_ROWS))
        .when(_is_unplaced(), F.lit(UNPLACED_ROWS))
    )
    if horizon.head is not None:
        found = found.when(row_id > horizon.head, F.lit(BEYOND_ROWS))
    return found.otherwise(F.shiftright(row_id, bits))


def _is_unplaced() -> Column:
    return F.col("chain_id").isNull() | F.col("id").isNull() | F.col("pid").isNull()


def looked_at(rows: DataFrame, horizon: Horizon) -> DataFrame:
    """Return the rows after the start; those without an id stay, to be found."""
    if horizon.start == 0:
        return rows
    return rows.where((F.col("id") > horizon.start) | F.col("id").isNull())


def placed(rows: DataFrame, horizon: Horizon) -> DataFrame:
    """Return the rows that fall into buckets: rows of the chain, with ids, up to the head."""
    found = looked_at(rows, horizon).where(
        ~F.col(MALFORMED) & (F.col("chain_id") == horizon.chain_id) & ~_is_unplaced()
    )
    return found if horizon.head is None else found.where(F.col("id") <= horizon.head)


def scan(
    rows: DataFrame,
    horizon: Horizon,
    bits: int,
    key: int,
    *,
    positions: bool,
    fingerprints: bool = True,
) -> Scan:
    """Scan `rows` once. With `positions`, rows are proven to be linked in the order of the file.

    `key` seeds every hash; it is drawn for each verification, so that no data can be made to fit.
    Without `fingerprints`, the content of the rows is not read.
    """
    classed = looked_at(rows, horizon).withColumn("number", class_of(horizon, bits))
    found = summed(
        classed,
        key,
        ["number", BLOCK] if positions else ["number"],
        counts={"not_below": F.col("pid") >= F.col("id"), "nulls": F.col(HAS_NULL)},
        positions=positions,
        fingerprints=fingerprints,
    )
    return _gathered(found.collect(), bits, positions=positions, fingerprints=fingerprints)


def _gathered(found: Sequence[Row], bits: int, *, positions: bool, fingerprints: bool) -> Scan:
    def bucket_of(row: Row) -> Bucket:
        return Bucket(
            bits=bits,
            number=row["number"],
            rows=row["rows"],
            is_whole=row["is_balanced"] and not row["not_below"],
            pid=row["pid"],
            first_id=row["first_id"],
            last_id=row["last_id"],
            nulls=row["nulls"],
            fingerprint=fingerprint_of(row) if fingerprints else 0,
        )

    inside = [row for row in found if row["number"] > BEYOND_ROWS]
    outside: dict[int, int] = {}
    for row in found:
        if row["number"] <= BEYOND_ROWS:
            outside[row["number"]] = outside.get(row["number"], 0) + row["rows"]
    stretches = [
        Stretch(
            bucket=bucket_of(row),
            block=row[BLOCK],
            first_position=row["first_position"],
            last_position=row["last_position"],
        )
        for row in (inside if positions else ())
    ]
    stretches.sort(key=lambda stretch: (stretch.block, stretch.first_position))
    buckets = _joined(stretches) if positions else [bucket_of(row) for row in inside]
    return Scan(
        buckets=sorted(buckets, key=lambda bucket: bucket.number),
        stretches=stretches,
        outside=outside,
        beyond_id=max(
            (row["last_id"] for row in found if row["number"] == BEYOND_ROWS), default=None
        ),
    )


def _joined(stretches: Sequence[Stretch]) -> list[Bucket]:
    """Return one bucket per number: a bucket's rows may be in several blocks."""
    joined: dict[int, Bucket] = {}
    for stretch in stretches:
        one = stretch.bucket
        other = joined.get(one.number)
        joined[one.number] = _sum_of(one, other) if other else _sum_of(one)
    return list(joined.values())


def _sum_of(*buckets: Bucket) -> Bucket:
    first = buckets[0]
    return Bucket(
        bits=first.bits,
        number=first.number,
        rows=sum(bucket.rows for bucket in buckets),
        is_whole=False,
        pid=min(bucket.pid for bucket in buckets),
        first_id=min(bucket.first_id for bucket in buckets),
        last_id=max(bucket.last_id for bucket in buckets),
        nulls=sum(bucket.nulls for bucket in buckets),
        fingerprint=sum(bucket.fingerprint for bucket in buckets),
    )


def is_one_ordered_path(stretches: Sequence[Stretch], horizon: Horizon) -> bool:
    """Return whether the rows, in their order in the file, form one path from start to head.

    This proves both at once: nothing is missing, and nothing is out of order.
    """
    at_id = horizon.start
    before: Stretch | None = None
    for stretch in stretches:
        # No line is between two stretches of one block.
        follows = (
            before is None
            or stretch.block != before.block
            or stretch.first_position == before.last_position + 1
        )
        if not (stretch.bucket.is_whole and stretch.bucket.pid == at_id and follows):
            return False
        at_id, before = stretch.bucket.last_id, stretch
    return horizon.head is None or at_id == horizon.head
