"""Finds two rows under one key: the sequencer would have answered the second with the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.findings import Findings, Kind
from chain_verifier.spark.database import rows_of
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.finding_frame import finding_frame, sampled
from chain_verifier.spark.scan import placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.spark.table import Table


_PARTITION_IDS: Final = 2_000_000
"""Ids per part of the shuffle: about 100 MB of keys, which a task sorts in its memory."""

_PARTITIONS_MAX: Final = 1_000
"""Parts of the shuffle of a chain whose ids skip widely, or whose span is not known."""

_CLIENT_KEY: Final = r"(?s)\A.+#(0|[1-9][0-9]*)\z"
"""Names that `chain_kernel.model` splits, except for numbers that are too large."""


def repeated_keys(table: Table, horizon: Horizon, window_rows: int, bits: int) -> Findings:
    """Return the rows whose key an earlier row has, each with the nearest such row.

    A free-form key may repeat once `window_rows` rows lie between; a client's number never.
    Raises SourceBroken.
    """
    with as_broken(table.name):
        rows = placed(rows_of(table, ("key",)), horizon).select("id", "key")
        pairs = _pairs(rows, table.span).persist()
        try:
            number = F.substring_index("key", "#", -1).try_cast("bigint")
            is_of_client = F.col("key").rlike(_CLIENT_KEY) & number.isNotNull()
            is_near = is_of_client | (F.col("id") - F.col("before_id") <= window_rows)
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
