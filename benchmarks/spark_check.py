"""What does the verifier's check cost beside a plain scan, and beside what one would write instead?

All over the same Parquet, by turns:
- scan: the plainest aggregate over the columns that the check reads, in one group;
- check: `verify` whole, from opening the source to the report (Spark is up already);
- lag: `lag(id)` over windows of the check's own buckets, compared with `pid`;
- anti join: the rows whose `pid` is the id of no row. It finds gaps and orphans only.

The last two run with Spark's own defaults (adaptive plans, 200 shuffle partitions), which suit them
better than the verifier's. `wide`: scan and check again, over rows with keys and payloads.

    python -m benchmarks.spark_check [--rows 50000000] [--wide-rows 5000000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.arms import ratio, spread
from benchmarks.ends import RunFailed
from benchmarks.host import RESULTS, describe_host
from benchmarks.spark_data import CHAIN_ID, head_of, seconds_of, spark_with, write_rows
from chain_verifier.config import ParquetSource, VerifyRequest, bucket_bits
from chain_verifier.report import Verdict
from chain_verifier.spark.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

RIVAL_SETTINGS = {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "200"}


class Bench:
    """One chain in Parquet, and the ways to look at it."""

    def __init__(self, spark: SparkSession, path: Path, rows: int) -> None:
        self._spark = spark
        self._path = str(path)
        self._rows = rows

    def _frame(self) -> DataFrame:
        return self._spark.read.parquet(self._path)

    def scan(self) -> None:
        """Aggregate the columns that the check reads."""
        ends = [F.min("id"), F.max("id"), F.sum("id"), F.min("pid"), F.max("pid"), F.sum("pid")]
        row = self._frame().agg(F.count("chain_id"), *ends).collect()[0]
        self._require(row[0], self._rows)

    def check(self) -> None:
        """Verify, as `chainctl verify --source parquet:PATH --head ID` does."""
        source = ParquetSource(path=self._path)
        request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,), head=head_of(self._rows))
        report = verify(request, session=self._spark)
        self._require(report.verdict, Verdict.COMPLETE)
        self._require(report.sources[0].rows, self._rows)

    def lag(self) -> None:
        """Count the rows that do not name the one before them in their bucket."""
        bits = bucket_bits(head_of(self._rows))
        frame = self._frame().select("id", "pid")
        bucket = F.shiftright("id", bits)
        window = Window.partitionBy(bucket).orderBy("id")
        found = frame.select("pid", F.lag("id").over(window).alias("before"))
        with self._rival_settings():
            broken = found.where(F.col("before").isNotNull() & (F.col("before") != F.col("pid")))
            self._require(broken.count(), 0)

    def anti_join(self) -> None:
        """Count the rows whose pid is no row's id; the first one's is none."""
        frame = self._frame()
        ids = frame.select(F.col("id").alias("pid"))
        with self._rival_settings():
            unrooted = frame.select("pid").join(ids, "pid", "left_anti")
            self._require(unrooted.count(), 1)

    def _rival_settings(self) -> _Settings:
        return _Settings(self._spark, RIVAL_SETTINGS)

    def _require(self, found: object, expected: object) -> None:
        if found != expected:
            raise RunFailed(f"{found!r}, expected {expected!r}")


class _Settings:
    """Settings of a session for the time of a `with`."""

    def __init__(self, spark: SparkSession, settings: Mapping[str, str]) -> None:
        self._conf = spark.conf
        self._settings = settings
        self._usual: dict[str, str] = {}

    def __enter__(self) -> None:
        self._usual = {name: str(self._conf.get(name)) for name in self._settings}
        for name, value in self._settings.items():
            self._conf.set(name, value)

    def __exit__(self, *error: object) -> None:
        for name, value in self._usual.items():
            self._conf.set(name, value)


def by_turns(
    arms: Mapping[str, Callable[[], object]], repeats: int, warm: tuple[str, ...]
) -> dict[str, list[float]]:
    """Return the seconds of every arm; those of `warm` run once before."""
    figures: dict[str, list[float]] = {name: [] for name in arms}
    for name in warm:
        arms[name]()
    for _ in range(repeats):
        for name, arm in arms.items():
            figures[name].append(seconds_of(arm))
            print(f"{name:10} {figures[name][-1]:7.2f} s", flush=True)
    return figures


def told(figures: Mapping[str, list[float]], base: str, rows: int) -> dict[str, Any]:
    """Return every arm's spread, its ratio to `base` within each round, and its rate."""
    return {
        name: {
            "seconds": spread(values),
            f"to_{base}": ratio(figures, name, base),
            "rows_per_second": spread([rows / seconds for seconds in values]),
        }
        for name, values in figures.items()
    }


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--wide-rows", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder of the Parquet, which is kept")
    parser.add_argument("--arms", default="scan,check,lag,anti_join")
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orderchain-bench-") as folder:
        data = arguments.data or Path(folder)
        narrow = write_rows(data, arguments.rows)
        wide = write_rows(data, arguments.wide_rows, is_wide=True)
        with spark_with({}) as spark:
            bench = Bench(spark, narrow, arguments.rows)
            names = arguments.arms.split(",")
            arms = {name: getattr(bench, name) for name in names}
            figures = by_turns(arms, arguments.repeats, ("scan", "check"))
            of_wide = Bench(spark, wide, arguments.wide_rows)
            wide_arms = {"scan": of_wide.scan, "check": of_wide.check}
            wide_figures = by_turns(wide_arms, 2 * arguments.repeats, ("scan", "check"))
    result = {
        "benchmark": "spark_check",
        "host": describe_host(),
        "repeats": arguments.repeats,
        "rows": arguments.rows,
        "narrow": told(figures, "scan", arguments.rows),
        "rivals_to_check": {
            name: ratio(figures, name, "check") for name in figures if name not in ("scan", "check")
        },
        "wide_rows": arguments.wide_rows,
        "wide": told(wide_figures, "scan", arguments.wide_rows),
    }
    print(msgspec.json.format(msgspec.json.encode(result), indent=1).decode())
    if arguments.dry:
        return
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "spark_check.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
