"""The one scan: sums of keyed hashes, per bucket of ids, without sort, join or shuffle of rows.

Its theorem, with the proof and the odds of a collision: `docs/verification.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.checks.buckets import Bucket
from chain_verifier.spark.table import BLOCK, HAS_NULL, MALFORMED, POSITION
from chain_verifier.verification import CONTENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row

    from chain_verifier.checks.buckets import Horizon


_LOW_HALF: Final = 0xFFFF_FFFF
_HALF_BITS: Final = 32
"""Sums are taken of 32-bit halves: in ANSI mode a sum of whole 64-bit hashes overflows; a sum of
halves cannot overflow below 2^31 rows per bucket."""

_DIGEST_BITS: Final = 256
_TEXTS: Final = ("key", "payload")
_NUMBERS: Final = tuple(name for name in CONTENT if name not in _TEXTS)
_NO_VALUE: Final = "-"

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
    is_in_order: bool
    """Each row comes right after the one that its pid names."""
    block: int
    first_position: int
    last_position: int


class Scan(Struct, frozen=True, kw_only=True):
    """What one scan found."""

    buckets: list[Bucket]
    """Sorted by id. For a source with positions, `is_whole` is not known, and False."""
    stretches: list[Stretch]
    """Sorted by position; empty for a source without positions."""
    outside: Mapping[int, int]
    """Rows counted under `MALFORMED_ROWS`, `FOREIGN_ROWS`, `UNPLACED_ROWS`, `BEYOND_ROWS`."""
    beyond_id: int | None
    """The highest id after the head."""
    end: tuple[int, int] | None
    """Block and position of the last line that is not malformed; None without such lines."""
    malformed_at: tuple[int, int] | None
    """Block and position of the first malformed line."""


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
    groups = ["number", BLOCK] if positions else ["number"]
    hashed = classed.withColumns(_hashes(key, positions=positions, fingerprints=fingerprints))
    sums = _sums(positions=positions, fingerprints=fingerprints)
    summed = hashed.groupBy(*groups).agg(*sums)
    found = summed.withColumn("is_balanced", _is_balanced(key, positions=positions)).collect()
    return _gathered(found, bits, positions=positions, fingerprints=fingerprints)


def _hashes(key: int, *, positions: bool, fingerprints: bool) -> dict[str, Column]:
    """Return the hashes of the node a row leads to, of the node it comes from, of its content.

    With positions, a node is hashed together with the place where the next row must be.
    """
    position = F.col(POSITION)
    hashes = {
        "id_hash": _node_hash(key, F.col("id"), position + 1 if positions else None),
        "pid_hash": _node_hash(key, F.col("pid"), position if positions else None),
    }
    return hashes | ({"row_hash": _row_hash(key)} if fingerprints else {})


def _row_hash(key: int) -> Column:
    """Return the hash of a whole row: keyed, over a digest for which two rows cannot be found.

    xxHash64 alone is not enough: whatever its key, one can construct two texts of 16 bytes that
    collide. (No two single numbers, such as ids, collide under one key.)
    """
    return F.xxhash64(F.lit(key), F.sha2(_row_bytes(), _DIGEST_BITS))


def _row_bytes() -> Column:
    """Return the bytes of a row, different for any two rows: numbers, lengths, then texts.

    A NULL differs from every value.
    """
    lengths = [F.octet_length(name).cast("bigint") for name in _TEXTS]
    numbers = [*(F.col(name).cast("bigint") for name in _NUMBERS), *lengths]
    shown = [F.coalesce(F.hex(number), F.lit(_NO_VALUE)) for number in numbers]
    texts = [F.coalesce(F.col(name).cast("binary"), F.lit(b"")) for name in _TEXTS]
    return F.concat(F.concat_ws(" ", *shown, F.lit("")).cast("binary"), *texts)


def _node_hash(key: int, node: Column, place: Column | None) -> Column:
    return F.xxhash64(F.lit(key), node, *([] if place is None else [place]))


def _sums(*, positions: bool, fingerprints: bool) -> list[Column]:
    sums = [
        F.count(F.lit(1)).alias("rows"),
        F.min("id").alias("first_id"),
        F.max("id").alias("last_id"),
        F.min("pid").alias("pid"),
        F.count_if(F.col("pid") >= F.col("id")).alias("not_below"),
        F.count_if(HAS_NULL).alias("nulls"),
    ]
    # For ids and pids, only the difference of their sums counts.
    for half, of in (("low", _low), ("high", _high)):
        surplus = of(F.col("id_hash")) - of(F.col("pid_hash"))
        sums.append(F.sum(surplus).alias(f"surplus_{half}"))
        if fingerprints:
            sums.append(F.sum(of(F.col("row_hash"))).alias(f"row_{half}"))
    if positions:
        sums.append(F.min(POSITION).alias("first_position"))
        sums.append(F.max(POSITION).alias("last_position"))
    return sums


def _low(hashed: Column) -> Column:
    return hashed.bitwiseAND(F.lit(_LOW_HALF))


def _high(hashed: Column) -> Column:
    return F.shiftrightunsigned(hashed, _HALF_BITS)


def _is_balanced(key: int, *, positions: bool) -> Column:
    """Return whether ids plus {lowest pid} equal pids plus {highest id}, by both sums."""
    entry = _node_hash(key, F.col("pid"), F.col("first_position") if positions else None)
    leave = _node_hash(key, F.col("last_id"), F.col("last_position") + 1 if positions else None)
    low = F.col("surplus_low") + _low(entry) == _low(leave)
    high = F.col("surplus_high") + _high(entry) == _high(leave)
    return low & high & (F.col("not_below") == 0)


def _gathered(found: Sequence[Row], bits: int, *, positions: bool, fingerprints: bool) -> Scan:
    def bucket_of(row: Row) -> Bucket:
        return _bucket(row, bits, (row["row_low"], row["row_high"]) if fingerprints else (0, 0))

    inside = [row for row in found if row["number"] > BEYOND_ROWS]
    outside: dict[int, int] = {}
    for row in found:
        if row["number"] <= BEYOND_ROWS:
            outside[row["number"]] = outside.get(row["number"], 0) + row["rows"]
    found_in_order = (_stretch(row, bucket_of(row)) for row in inside) if positions else ()
    stretches = sorted(found_in_order, key=_place)
    buckets = _joined(stretches) if positions else [bucket_of(row) for row in inside]
    return Scan(
        buckets=sorted(buckets, key=lambda bucket: bucket.number),
        stretches=stretches,
        outside=outside,
        beyond_id=max(
            (row["last_id"] for row in found if row["number"] == BEYOND_ROWS), default=None
        ),
        end=_outermost(found, last=True, malformed=False) if positions else None,
        malformed_at=_outermost(found, last=False, malformed=True) if positions else None,
    )


def _bucket(row: Row, bits: int, fingerprint: tuple[int, int]) -> Bucket:
    return Bucket(
        bits=bits,
        number=row["number"],
        rows=row["rows"],
        is_whole=row["is_balanced"],
        pid=row["pid"],
        first_id=row["first_id"],
        last_id=row["last_id"],
        nulls=row["nulls"],
        fingerprint=fingerprint,
    )


def _stretch(row: Row, bucket: Bucket) -> Stretch:
    return Stretch(
        bucket=bucket,
        is_in_order=row["is_balanced"],
        block=row[BLOCK],
        first_position=row["first_position"],
        last_position=row["last_position"],
    )


def _place(stretch: Stretch) -> tuple[int, int]:
    return stretch.block, stretch.first_position


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
        fingerprint=(
            sum(bucket.fingerprint[0] for bucket in buckets),
            sum(bucket.fingerprint[1] for bucket in buckets),
        ),
    )


def _outermost(found: Sequence[Row], *, last: bool, malformed: bool) -> tuple[int, int] | None:
    """Return the place of the first or the last line that is, or is not, malformed."""
    column: Any = "last_position" if last else "first_position"
    places = [
        (row[BLOCK], row[column]) for row in found if (row["number"] == MALFORMED_ROWS) is malformed
    ]
    if not places:
        return None
    return max(places) if last else min(places)


def is_one_ordered_path(stretches: Sequence[Stretch], horizon: Horizon) -> bool:
    """Return whether the rows, in their order in the file, form one path from start to head.

    This proves both at once: nothing is missing, and nothing is out of order.
    """
    at_id = horizon.start
    before: Stretch | None = None
    for stretch in stretches:
        follows = before is None or _follows(before, stretch)
        if not (stretch.is_in_order and stretch.bucket.pid == at_id and follows):
            return False
        at_id, before = stretch.bucket.last_id, stretch
    return horizon.head is None or at_id == horizon.head


def _follows(before: Stretch, stretch: Stretch) -> bool:
    """Whether there is no line between two stretches of one block."""
    return stretch.block != before.block or stretch.first_position == before.last_position + 1
