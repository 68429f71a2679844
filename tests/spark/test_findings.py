"""Findings as frames: very many are counted and written, and the driver sees a few."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import FINDINGS_MAX, ParquetSource, VerifyRequest
from chain_verifier.stages import watched_stages
from chain_verifier.verify import verify
from orderchain.errors import RetryError
from tests.spark.planting import CHAIN_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MANY = 200_000
RESULT_BYTES_MAX = "1m"
"""What all tasks of a job may send to the driver. The findings are many times that."""


@contextmanager
def small_results(spark: SparkSession) -> Iterator[None]:
    """Let Spark refuse jobs whose results do not fit."""
    conf: Any = spark.sparkContext._jsc.sc().conf()
    usual = conf.get("spark.driver.maxResultSize", "1g")
    conf.set("spark.driver.maxResultSize", RESULT_BYTES_MAX)
    try:
        yield
    finally:
        conf.set("spark.driver.maxResultSize", usual)


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


def test_very_many_findings_are_counted_and_written_and_few_reach_the_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, key in (("base", "a"), ("own", "b")):
        rows(spark, key).write.parquet(str(tmp_path / name))
    sources = tuple(ParquetSource(path=str(tmp_path / name)) for name in ("base", "own"))
    folder = tmp_path / "findings"
    request = VerifyRequest(
        chain_id=CHAIN_ID, sources=sources, head=MANY + 1, findings_folder=str(folder)
    )
    with small_results(spark):
        report = verify(request, spark)
        with pytest.raises((Py4JError, PySparkException), match="maxResultSize"):
            spark.read.parquet(str(folder / "findings.parquet")).collect()
    assert report.counts == {"gap": 2, "differing": MANY}
    assert len(report.findings) == 2 + FINDINGS_MAX
    for found in (
        spark.read.parquet(str(folder / "findings.parquet")),
        spark.read.json(str(folder / "findings.json")),
    ):
        counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        assert counts == report.counts
        ends = found.where("kind = 'differing'").agg(
            F.count_distinct("id"), F.min("id"), F.max("id"), F.min("columns"), F.max("chain")
        )
        assert tuple(ends.collect()[0]) == (MANY, 1, MANY, ["key"], CHAIN_ID)


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
