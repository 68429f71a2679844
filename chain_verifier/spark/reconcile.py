"""What takes a shuffle: comparing the rows of two sources, and looking for two rows under one key.

Two sources are compared row by row only where their fingerprints differ. Equal keys may be
anywhere; the sequencer would have answered the second row of a key with the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.findings import Findings, Kind
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.finding_frame import finding_frame, sampled, sampled_rows
from chain_verifier.spark.scan import placed
from chain_verifier.spark.source_check import in_buckets
from chain_verifier.spark.table import CONTENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from chain_verifier.checks.buckets import Bucket, Horizon
    from chain_verifier.spark.table import Table


_COMPARED: Final = tuple(name for name in CONTENT if name not in ("chain_id", "id"))


def compare(
    table: Table,
    base: Table,
    differing: Sequence[Bucket],
    horizon: Horizon,
    skips: Sequence[tuple[int, int]] = (),
) -> Findings:
    """Return what `table` lacks, has in surplus, or holds otherwise in the `differing` buckets."""
    with as_broken(f"{table.name} against {base.name}"):
        here = by_id(in_buckets(placed(table.rows, horizon), differing))
        there = by_id(in_buckets(placed(base.rows, horizon), differing))
        pairs = pairs_of(here, there)
        for after, until in skips:
            is_skipped = (F.col("id") > after) & (F.col("id") <= until)
            pairs = pairs.where(~((F.col("kind") == Kind.LACKING.value) & is_skipped))
        return findings_of(pairs, table.name, base.name)


def forged_findings(name: str, forged: DataFrame, base: Table, horizon: Horizon) -> Findings:
    """Return the rows of forged frames that `base` does not hold, or holds with other content."""
    here = by_id(forged.distinct())
    there = base.rows.where(F.col("chain_id") == horizon.chain_id)
    with as_broken(f"{name} against {base.name}"):
        pairs = pairs_of(here, by_id(there.join(here.select("id"), "id", "left_semi")))
        return findings_of(pairs.where(F.col("kind") != Kind.LACKING.value), name, base.name)


def findings_of(pairs: DataFrame, source: str, against: str) -> Findings:
    """Return `pairs` as findings of `source`; all are counted, the first of each kind are kept."""
    return sampled_rows(finding_frame(pairs, source=source, against=against))


def by_id(rows: DataFrame) -> DataFrame:
    """Return one row per id: how often it occurs, and its lowest and highest content."""
    content = F.struct(*_COMPARED)
    return rows.groupBy("id").agg(
        F.count(F.lit(1)).alias("times"),
        F.min(content).alias("lowest"),
        F.max(content).alias("highest"),
    )


def pairs_of(here: DataFrame, there: DataFrame) -> DataFrame:
    """Return the ids at which the two differ, with the kind of difference and the lowest pid there.

    The pid is that of the base, but for a row in surplus.
    """
    joined = here.alias("h").join(there.alias("t"), "id", "full_outer")
    own, base = (F.coalesce(F.col(f"{side}.times"), F.lit(0)) for side in "ht")
    kind = (
        F.when(own < base, Kind.LACKING.value)
        .when(own > base, Kind.SURPLUS.value)
        .when(_differs(), Kind.DIFFERING.value)
    )
    columns = F.array_compact(F.array(*map(_name_if_other, _COMPARED)))
    named = F.when(own == base, columns)
    pid = F.when(own > base, F.col("h.lowest.pid")).otherwise(F.col("t.lowest.pid"))
    compared = joined.select("id", pid.alias("pid"), kind.alias("kind"), named.alias("columns"))
    return compared.where(F.col("kind").isNotNull())


def _differs() -> Column:
    lowest = F.col("h.lowest").eqNullSafe(F.col("t.lowest"))
    return ~(lowest & F.col("h.highest").eqNullSafe(F.col("t.highest")))


def _name_if_other(name: str) -> Column:
    lowest = F.col(f"h.lowest.{name}").eqNullSafe(F.col(f"t.lowest.{name}"))
    highest = F.col(f"h.highest.{name}").eqNullSafe(F.col(f"t.highest.{name}"))
    return F.when(~(lowest & highest), F.lit(name))


_PARTITION_IDS: Final = 2_000_000
"""Ids per part of the shuffle: about 100 MB of keys, which a task sorts in its memory."""

_PARTITIONS_MAX: Final = 1_000
"""Parts of the shuffle of a chain whose ids skip widely, or whose span is not known."""

_CLIENT_KEY: Final = r"(?s)\A.+#(0|[1-9][0-9]*)\z"
"""What `orderchain.model` splits, except for numbers that are too large."""


def repeated_keys(table: Table, horizon: Horizon, window_rows: int, bits: int) -> Findings:
    """Return the rows whose key an earlier row has, each with the nearest such row.

    A free-form key may repeat once `window_rows` rows lie between; a client's number never.
    Raises SourceBroken.
    """
    with as_broken(table.name):
        rows = placed(table.rows, horizon).select("id", "key")
        pairs = _pairs(rows, table.span).persist()
        try:
            is_near = _is_of_client() | (F.col("id") - F.col("before_id") <= window_rows)
            found, far = pairs.where(is_near), pairs.where(~is_near)
            if not far.isEmpty():
                # Ids skip numbers, so few rows may lie between two ids that are far apart.
                found = found.unionByName(_within(far, _places(rows, bits), window_rows))
            repeated = found.select("id", F.array("before_id", "id").alias("ids"), "key")
            frame = finding_frame(repeated, kind=Kind.REPEATED_KEY.value, source=table.name)
            return sampled(frame)
        finally:
            pairs.unpersist()


def _pairs(rows: DataFrame, span: int | None) -> DataFrame:
    """Return the rows whose key an earlier row has, and the nearest such row."""
    parts = _PARTITIONS_MAX if span is None else span // _PARTITION_IDS + 1
    keyed = rows.where(F.col("key").isNotNull())
    of_key = Window.partitionBy("key").orderBy("id")
    ordered = keyed.repartition(min(parts, _PARTITIONS_MAX), "key").withColumn(
        "before_id", F.lag("id").over(of_key)
    )
    # An id that occurs twice is a duplicate, not a second order.
    return ordered.where(F.col("before_id") != F.col("id"))


def _is_of_client() -> Column:
    number = F.substring_index("key", "#", -1).try_cast("bigint")
    return F.col("key").rlike(_CLIENT_KEY) & number.isNotNull()


def _places(rows: DataFrame, bits: int) -> DataFrame:
    """Return for each id which row of the chain it is, counted within ranges of 2^bits ids."""
    ids = rows.select("id").distinct().withColumn("number", F.shiftright("id", bits))
    nth = F.row_number().over(Window.partitionBy("number").orderBy("id"))
    before = Window.orderBy("number").rowsBetween(Window.unboundedPreceding, -1)
    sizes = ids.groupBy("number").agg(F.count(F.lit(1)).alias("size"))
    offsets = sizes.select(
        "number", F.coalesce(F.sum("size").over(before), F.lit(0)).alias("offset")
    )
    placed_ids = ids.withColumn("nth", nth).join(F.broadcast(offsets), "number")
    return placed_ids.select("id", (F.col("offset") + F.col("nth")).alias("place"))


def _within(pairs: DataFrame, places: DataFrame, window_rows: int) -> DataFrame:
    """Return the pairs with fewer than `window_rows` rows between."""
    earlier = places.select(F.col("id").alias("before_id"), F.col("place").alias("before_place"))
    counted = pairs.join(places, "id").join(earlier, "before_id")
    near = counted.where(F.col("place") - F.col("before_place") <= window_rows)
    return near.select(*pairs.columns)
