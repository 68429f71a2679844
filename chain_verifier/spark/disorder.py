"""Names the rows of a file that come after a row that follows them in the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.findings import Findings, Kind
from chain_verifier.spark.finding_frame import finding_frame, sampled
from chain_verifier.spark.scan import placed
from chain_verifier.spark.sources.table import BLOCK, POSITION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from chain_verifier.checks.bucket import Horizon


_HIGHEST = "highest_before"


def rows_out_of_order(source: str, rows: DataFrame, horizon: Horizon) -> Findings:
    """Return the rows that come after a higher id, grouped by that id.

    A row that occurs twice is a duplicate; only its first occurrence counts here. This sorts the
    rows of each block, so it runs only if the scan found something.
    """
    firsts = _first_occurrences(placed(rows, horizon))
    late = _with_highest_before(firsts).where(F.col("id") < F.col(_HIGHEST))
    groups = late.groupBy(F.col(_HIGHEST).alias("after_id")).agg(
        F.min("id").alias("id"), F.max("id").alias("until_id"), F.count(F.lit(1)).alias("count")
    )
    return sampled(finding_frame(groups, kind=Kind.OUT_OF_ORDER.value, source=source))


def _first_occurrences(rows: DataFrame) -> DataFrame:
    nth = F.row_number().over(Window.partitionBy("id").orderBy(BLOCK, POSITION))
    return rows.select("id", BLOCK, POSITION).withColumn("nth", nth).where(F.col("nth") == 1)


def _with_highest_before(firsts: DataFrame) -> DataFrame:
    """Add the highest id that comes before a row, in its own block or in an earlier one."""
    window = Window.partitionBy(BLOCK).orderBy(POSITION).rowsBetween(Window.unboundedPreceding, -1)
    highest = F.greatest(F.max("id").over(window), _highest_of_blocks_before(firsts))
    return firsts.withColumn(_HIGHEST, highest)


def _highest_of_blocks_before(firsts: DataFrame) -> Column:
    """Return, by block, the highest id of the earlier blocks; this reads one row per block."""
    blocks = firsts.groupBy(BLOCK).agg(F.max("id").alias("id")).orderBy(BLOCK).collect()
    before: int | None = None
    highest = F.lit(None).cast("bigint")
    for block in blocks:
        highest = F.when(F.col(BLOCK) == block[BLOCK], F.lit(before).cast("bigint")).otherwise(
            highest
        )
        before = block["id"] if before is None else max(before, block["id"])
    return highest
