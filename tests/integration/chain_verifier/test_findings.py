"""Very many findings are counted and written, and a sample reaches the driver; findings that cannot
be written leave no verdict.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from chain_kernel.errors import InputError, RetryError, SettingError
from chain_verifier.config import FINDINGS_MAX, ParquetSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.spark.verify import verify
from chainctl.exits import ExitCode
from chainctl.main import main
from tests.integration.chain_verifier.planted_faults import CHAIN_ID

MANY: Final = 50_000
RESULT_BYTES_MAX: Final = "512k"
"""What all tasks of a job may send to the driver. A hash of each finding is many times that."""

COMPILED: Final = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
"""What the command line has: for many rows it pays to compile their plans."""


@contextmanager
def small_results(spark: SparkSession) -> Iterator[None]:
    """Let Spark refuse jobs whose results do not fit, and compile its plans."""
    conf: Any = spark.sparkContext._jsc.sc().conf()
    usual = {name: spark.conf.get(name) for name in COMPILED}
    bytes_max = conf.get("spark.driver.maxResultSize", "1g")
    conf.set("spark.driver.maxResultSize", RESULT_BYTES_MAX)
    for name, value in COMPILED.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        conf.set("spark.driver.maxResultSize", bytes_max)
        for name, before in usual.items():
            spark.conf.set(name, str(before))


def rows(spark: SparkSession, key: str, every_second: str | None = None) -> DataFrame:
    """Whole rows under `key`; every second one under another, if it is given."""
    ids = spark.range(1, MANY + 1, numPartitions=2)
    own = F.when(F.col("id") % 2 == 0, F.lit(every_second or key)).otherwise(F.lit(key))
    return ids.select(
        F.lit(CHAIN_ID).alias("chain_id"),
        "id",
        (F.col("id") - 1).alias("pid"),
        own.alias("key"),
        F.lit(0).cast("bigint").alias("event_time_ns"),
        F.lit(b"").alias("payload"),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("every_second", ["a", None], ids=["apart", "neighbours"])
def test_very_many_findings_are_counted_and_written_and_few_reach_the_driver(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    every_second: str | None,
) -> None:
    """Rows that lie apart are a finding each; neighbours are one, and each of them is written."""
    paths = {name: str(tmp_path / name) for name in ("base", "own", "findings")}
    with small_results(spark):
        rows(spark, "a").write.parquet(paths["base"])
        rows(spark, "b", every_second).write.parquet(paths["own"])
        code = main(
            ["verify", "--chain", str(CHAIN_ID), "--head", str(MANY + 1), "--json",
             "--source", f"parquet:{paths['base']}", "--source", f"parquet:{paths['own']}",
             "--findings", paths["findings"]]
        )  # fmt: skip
        written = [
            spark.read.parquet(f"{paths['findings']}/findings.parquet"),
            spark.read.json(f"{paths['findings']}/findings.json"),
        ]
        counts = [
            {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
            for found in written
        ]
        # So little may reach the driver that not even a hash of each finding does.
        with pytest.raises((Py4JError, PySparkException), match="maxResultSize"):
            written[0].select(F.sha2(F.col("id").cast("string"), 256)).collect()
    assert code == ExitCode.FINDINGS
    report = json.loads(capsys.readouterr().out)
    differing = MANY if every_second is None else MANY // 2
    expected = {"gap": 2, "differing": differing}
    assert report["row_counts"] == expected
    assert counts == [expected, expected]
    if every_second is None:
        assert report["counts"] == {"gap": 2, "differing": 1}
        (found,) = (one for one in report["findings"] if one["kind"] == "differing")
        assert (found["id"], found["last_id"], found["rows"]) == (1, MANY, MANY)
    else:
        assert report["counts"] == expected
        assert len(report["findings"]) == 2 + FINDINGS_MAX


@pytest.mark.merge
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


def damaged(spark: SparkSession, folder: Path) -> ParquetSource:
    """Ten rows of which three are gone: a gap, and one more up to the head."""
    rows(spark, "a").where("id <= 10 AND id <> 4").write.parquet(str(folder / "rows"))
    return ParquetSource(path=str(folder / "rows"))


def test_findings_at_a_url_are_left_to_spark_to_write_and_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A file system with an authority, as that of a bucket has: a path would lose a slash of it."""
    java: Any = spark.sparkContext._jsc
    (tmp_path / "bucket").mkdir()
    java.hadoopConfiguration().set(
        "fs.viewfs.mounttable.bucket.link./all", f"file://{tmp_path}/bucket"
    )
    url = "viewfs://bucket/all/findings [1]"
    request = VerifyRequest(
        chain_id=CHAIN_ID, sources=(damaged(spark, tmp_path),), head=12, findings_folder=url
    )
    assert verify(request, spark).counts == {"gap": 2}
    written = tmp_path / "bucket" / "findings [1]"
    lines = [
        line
        for part in (written / "findings.json").glob("*.json")
        for line in part.read_text(encoding="utf-8").splitlines()
    ]
    assert len(lines) == 2
    with pytest.raises(InputError, match="an empty folder"):
        verify(request, spark)
    nowhere = replace(request, findings_folder="nowhere://bucket/x")
    with pytest.raises(InputError, match="a place that Spark can write to"):
        verify(nowhere, spark)
    with pytest.raises(SettingError, match="the local mode names the first fault"):
        verify_locally(request)
