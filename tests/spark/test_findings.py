"""Findings that cannot be written leave no verdict; whoever watches is told of stages at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import ParquetSource, VerifyRequest
from chain_verifier.stages import watched_stages
from chain_verifier.verify import verify
from orderchain.errors import RetryError
from tests.spark.planting import CHAIN_ID

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MANY = 200_000


def rows(spark: SparkSession, key: str) -> DataFrame:
    ids = spark.range(1, MANY + 1, numPartitions=2)
    return ids.select(
        F.lit(CHAIN_ID).alias("chain_id"),
        "id",
        (F.col("id") - 1).alias("pid"),
        F.lit(key).alias("key"),
        F.lit(0).cast("bigint").alias("event_time_ns"),
        F.lit(b"").alias("payload"),
    )


def test_findings_that_cannot_be_written_leave_no_verdict(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows(spark, "a").limit(10).write.parquet(str(tmp_path / "rows"))
    source = ParquetSource(path=str(tmp_path / "rows"))
    (tmp_path / "file").touch()
    request = VerifyRequest(
        chain_id=CHAIN_ID, sources=(source,), head=11, findings_folder=str(tmp_path / "file" / "x")
    )
    with pytest.raises(RetryError, match="findings could not be written to"):
        verify(request, spark)


def test_stages_at_work_are_told_to_whoever_watches(spark: SparkSession) -> None:
    told: list[tuple[int, int]] = []
    with watched_stages(spark, lambda *tasks: told.append(tasks)):
        while not told:
            spark.range(MANY, numPartitions=8).agg(F.sum("id")).collect()
    assert all(0 <= done <= total for done, total in told)
