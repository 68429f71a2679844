"""What the verifier's check costs, over Parquet and over a database, and how it grows."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.chains import SQL, Site, connected, generate_chain
from benchmarks.processes import RunFailed, call, resident_mib, serve
from benchmarks.spreads import interleave, ratio, spread, spreads
from chain_verifier.config import (
    FETCH_PAGES,
    FETCH_ROWS,
    DatabaseSource,
    ParquetSource,
    VerifyRequest,
    bucket_bits,
)
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Report, Verdict
from chain_verifier.spark.database import DatabaseTable, chain_address
from chain_verifier.spark.session import open_session
from chain_verifier.spark.verify import verify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from benchmarks.load import Figures


@contextmanager
def _spark(
    settings: Mapping[str, str], master: str | None = None, driver_memory: str = "4g"
) -> Iterator[SparkSession]:
    """Open the verifier's own session, with settings that only Java's start takes."""
    given = [f"--driver-memory {driver_memory}"]
    given += [f"--conf {name}={value}" for name, value in settings.items()]
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*given, "pyspark-shell"])
    with open_session(master, is_long_run=True) as session:
        yield session


async def _seconds_of(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def _timed(
    works: Mapping[str, Callable[[], Awaitable[None]]], repeats: int, *warm: str
) -> dict[str, list[float]]:
    arms = {name: partial(_seconds_of, work) for name, work in works.items()}
    return await interleave(arms, repeats, warm)


def _require(found: object, expected: object) -> None:
    if found != expected:
        raise RunFailed(f"{found!r}, expected {expected!r}")


def _require_whole(report: Report, rows: int) -> None:
    _require((report.verdict, report.sources[0].rows), (Verdict.COMPLETE, rows))


# -- rows of a chain as Parquet, written straight from arrays --------------------------------------

CHAIN_ID: Final = 1
_GROUP_ROWS: Final = 1_000_000
_FILE_ROWS: Final = 5_000_000
_SKIP_EVERY: Final = 1_000
_SKIP: Final = 7
"""Ids skip a few numbers after every batch, as they do where partitions and terms change."""

WIDE_PAYLOAD_BYTES: Final = 100
_TYPES: Final = {
    "chain_id": pa.int32(), "id": pa.int64(), "pid": pa.int64(), "key": pa.string(),
    "event_time_ns": pa.int64(), "payload": pa.binary(),
}  # fmt: skip
_SCHEMA: Final = pa.schema(list(_TYPES.items()))


def _ids_between(first: int, end: int) -> Any:  # noqa: ANN401 - numpy's own
    """Return the ids of the rows number `first` (from 0) up to, not including, number `end`."""
    numbers = np.arange(first, end, dtype=np.int64)
    return numbers + 1 + numbers // _SKIP_EVERY * _SKIP


def _head_of(rows: int) -> int:
    return int(_ids_between(rows - 1, rows)[0])


def write_rows(folder: Path, rows: int, *, is_wide: bool = False) -> Path:
    """Write a chain of `rows` rows.

    Narrow rows have one and the same key, time and payload (none), so that reading them is as
    cheap as possible and cannot hide what the check costs. Wide ones have keys of their own and
    random payloads.
    """
    path = folder / f"{'wide' if is_wide else 'narrow'}-{rows}"
    path.mkdir()
    random = np.random.default_rng(1)
    for first in range(0, rows, _FILE_ROWS):
        end = min(first + _FILE_ROWS, rows)
        file = path / f"rows-{first:012d}.parquet"
        with pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer:
            for begin in range(first, end, _GROUP_ROWS):
                group = _group(begin, min(begin + _GROUP_ROWS, end), random, is_wide=is_wide)
                writer.write_table(group, row_group_size=_GROUP_ROWS)
    return path


def _group(first: int, end: int, random: Any, *, is_wide: bool) -> pa.Table:  # noqa: ANN401
    count = end - first
    ids, pids = _ids_between(first, end), _ids_between(first - 1, end - 1)
    if first == 0:
        pids[0] = 0
    times = 1_700_000_000_000_000_000 + np.arange(first, end) * 1_000
    if is_wide:
        keys = pa.array([f"client-{number % 64}#{number}" for number in range(first, end)])
        blob = random.bytes(count * WIDE_PAYLOAD_BYTES)
        offsets = np.arange(count + 1, dtype=np.int32) * WIDE_PAYLOAD_BYTES
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(blob)]
        payloads = pa.Array.from_buffers(pa.binary(), count, buffers)
    else:
        keys = pa.repeat(pa.scalar("k"), count)
        payloads = pa.repeat(pa.scalar(b"", pa.binary()), count)
        times[:] = times[0]
    chains = np.full(count, CHAIN_ID, dtype=np.int32)
    return pa.table([chains, ids, pids, keys, times, payloads], schema=_SCHEMA)


# -- spark_check: what does the check cost beside a scan, and beside what one would write instead? -

_RIVAL_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "200",
}
_WARM: Final = ("scan", "check")


async def spark_check(*, repeats: int, rows: int, wide_rows: int) -> Figures:
    """Run every arm over narrow rows, scan and check over wide ones."""
    with tempfile.TemporaryDirectory(prefix="orderchain-bench-") as folder:
        narrow = write_rows(Path(folder), rows)
        wide = write_rows(Path(folder), wide_rows, is_wide=True)
        with _spark({}) as spark:
            figures = await _timed(_Parquet(spark, narrow, rows).arms(), repeats, *_WARM)
            wides = _Parquet(spark, wide, wide_rows).arms(*_WARM)
            wide_figures = await _timed(wides, 2 * repeats, *_WARM)
    return {
        "narrow": _with_rates(figures, rows, "to_scan", lambda name: (name, "scan")),
        "rivals_to_check": {name: ratio(figures, name, "check") for name in ("lag", "anti_join")},
        "wide": _with_rates(wide_figures, wide_rows, "to_scan", lambda name: (name, "scan")),
    }


def _with_rates(
    figures: Mapping[str, list[float]],
    rows: int,
    title: str,
    pair: Callable[[str], tuple[str, str]],
) -> Figures:
    """Return every arm's spread, its rate, and the ratio of the `pair` of arms for its name."""
    return {
        name: {
            "seconds": spread(values),
            "rows_per_second": spread([rows / seconds for seconds in values]),
            title: ratio(figures, *pair(name)),
        }
        for name, values in figures.items()
    }


@dataclass
class _Parquet:
    """One chain in Parquet, and the ways to look at it."""

    spark: SparkSession
    path: Path
    rows: int

    def arms(self, *names: str) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            name: getattr(self, name) for name in names or ("scan", "check", "lag", "anti_join")
        }

    def _frame(self) -> DataFrame:
        return self.spark.read.parquet(str(self.path))

    async def scan(self) -> None:
        """Aggregate the columns that the check reads."""
        ends = [F.min("id"), F.max("id"), F.sum("id"), F.min("pid"), F.max("pid"), F.sum("pid")]
        row = self._frame().agg(F.count("chain_id"), *ends).collect()[0]
        _require(row[0], self.rows)

    async def check(self) -> None:
        """Verify, as `chainctl verify --source parquet:PATH --head ID` does."""
        source = ParquetSource(path=str(self.path))
        request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,), head=_head_of(self.rows))
        _require_whole(verify(request, session=self.spark), self.rows)

    async def lag(self) -> None:
        """Count the rows that do not name the one before them in their bucket."""
        frame = self._frame().select("id", "pid")
        bucket = F.shiftright("id", bucket_bits(_head_of(self.rows)))
        window = Window.partitionBy(bucket).orderBy("id")
        found = frame.select("pid", F.lag("id").over(window).alias("before"))
        broken = F.col("before").isNotNull() & (F.col("before") != F.col("pid"))
        with self._rival_settings():
            _require(found.where(broken).count(), 0)

    async def anti_join(self) -> None:
        """Count the rows whose pid is no row's id; the first one's is none."""
        frame = self._frame()
        ids = frame.select(F.col("id").alias("pid"))
        with self._rival_settings():
            _require(frame.select("pid").join(ids, "pid", "left_anti").count(), 1)

    @contextmanager
    def _rival_settings(self) -> Iterator[None]:
        conf = self.spark.conf
        usual = {name: str(conf.get(name)) for name in _RIVAL_SETTINGS}
        for name, value in _RIVAL_SETTINGS.items():
            conf.set(name, value)
        yield
        for name, value in usual.items():
            conf.set(name, value)


# -- spark_scale: does the check grow with the chain as a scan does, and does its memory stay? -----

_CHECKS: Final = 2
"""Checks in one driver: the first one is warm-up, the last one is the figure."""

_EXECUTORS: Final = "local-cluster[2,1,2048]"
_SETTINGS: Final = {
    "spark.executor.memory": "2g",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
    "spark.eventLog.logStageExecutorMetrics": "true",
    "spark.executor.metrics.pollingInterval": "100",
    # The driver reports its own heap as often as its executors send heartbeats.
    "spark.executor.heartbeatInterval": "1s",
}
_MIB: Final = 2**20


async def spark_scale(*, repeats: int, short: int, long: int) -> Figures:
    """Run the lengths by turns, and return the spread of every figure."""
    with tempfile.TemporaryDirectory(prefix="orderchain-bench-") as folder:
        arms = {
            str(rows): partial(_in_a_driver, write_rows(Path(folder), rows), rows)
            for rows in (short, long)
        }
        found = await interleave(arms, repeats, ())
    by_rows = {rows: spreads(lines) for rows, lines in found.items()}
    names = list(by_rows[str(short)])
    pairs = list(zip(found[str(long)], found[str(short)], strict=True))
    return {
        "executors": "2 of 1 core and 2 GB",
        "figures": {
            name: {rows: figures[name] for rows, figures in by_rows.items()} for name in names
        },
        "long_to_short": {
            name: spread([one[name] / other[name] for one, other in pairs])
            for name in names
            if name != "spilled_bytes"
        },
    }


async def _in_a_driver(path: Path, rows: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="orderchain-events-") as folder:
        log = Path(folder) / "log"
        log.mkdir()
        # Otherwise the executors keep their files in the folder of Spark itself.
        work = {"SPARK_WORKER_DIR": f"{folder}/work"}
        given = {"path": str(path), "rows": rows, "log": str(log)}
        async with call(drive, keeps_errors=False, environment=work, **given) as driver:
            return await driver.result()


async def drive(path: str, rows: int, log: str) -> dict[str, float]:
    """Check `rows` rows in a driver of their own, and return seconds and memory."""
    settings = _SETTINGS | {"spark.eventLog.dir": Path(log).as_uri()}
    with _spark(settings, _EXECUTORS, driver_memory="1g") as spark:
        ways = _Parquet(spark, Path(path), rows)
        seconds = [await _seconds_of(ways.check) for _ in range(_CHECKS)]
        scans = [await _seconds_of(ways.scan) for _ in range(_CHECKS)]
        java: Any = spark.sparkContext._gateway
        memory = {
            "driver_python_peak_mib": resident_mib(),
            "driver_java_peak_mib": resident_mib(process_id=java.proc.pid),
        }
    return {"seconds": seconds[-1], "scan_seconds": scans[-1], **memory, **_of_log(Path(log))}


def _of_log(folder: Path) -> dict[str, float]:
    """Return what was spilled in all, and the highest heap of driver and executors."""
    spilled = tasks = 0
    heaps = {"driver": 0, "executor": 0}
    logs = folder.glob("[!.]*")  # the others are checksums
    for event in (json.loads(line) for log in logs for line in log.read_text().splitlines()):
        if event["Event"] == "SparkListenerTaskEnd":
            metrics = event["Task Metrics"]
            spilled += metrics["Memory Bytes Spilled"] + metrics["Disk Bytes Spilled"]
            tasks += 1
        if event["Event"] == "SparkListenerStageExecutorMetrics":
            who = "driver" if event["Executor ID"] == "driver" else "executor"
            heaps[who] = max(heaps[who], event["Executor Metrics"]["JVMHeapMemory"])
    if not tasks or not all(heaps.values()):
        raise RunFailed(f"the event log in {folder} has {tasks} tasks, heaps {heaps}")
    peaks = {f"{who}_heap_peak_mib": heap / _MIB for who, heap in heaps.items()}
    return {"spilled_bytes": spilled, **peaks}


# -- spark_jdbc: does the check of a database keep the reading side busy? --------------------------


async def spark_jdbc(site: Site, *, repeats: int, rows: int) -> Figures:
    """Read one chain in every way."""
    chain_id = await generate_chain(site, rows)
    with _spark({}) as spark:
        arms = _Database(spark, site, chain_id, rows).arms()
        figures = await _timed(arms, repeats, "bare", "check")
    found = _with_rates(figures, rows, "rate_to_bare", lambda name: ("bare", name))
    return {"payload_bytes": 100, "arms": found}


@dataclass
class _Database:
    """One chain in PostgreSQL, and the ways to read it."""

    spark: SparkSession
    site: Site
    chain_id: int
    rows: int

    def __post_init__(self) -> None:
        self._source = DatabaseSource(database=self.site.auditor)
        self._request = VerifyRequest(chain_id=self.chain_id, sources=(self._source,))

    def arms(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "bare": self._bare,
            "arrays": self._arrays,
            "check": self._check,
            "local": self._local,
            "lag": partial(self._ask, "lag", 0),
            "aggregate": partial(self._ask, "aggregate", self.rows),
        }

    async def _bare(self) -> None:
        """Count and sum in Spark the rows that JDBC brings."""
        joined = "CROSS JOIN unnest(page.ids, page.pids) AS row (id, pid)"
        self._count(self._read("id, pid", joined))

    async def _arrays(self) -> None:
        """Count and sum in Spark what is in the arrays that JDBC brings."""
        found = F.explode(F.arrays_zip("ids", "pids")).alias("row")
        self._count(self._read("ids, pids").select(found).selectExpr("row.ids id", "row.pids pid"))

    async def _check(self) -> None:
        _require_whole(verify(self._request, session=self.spark), self.rows)

    async def _local(self) -> None:
        # It has an event loop of its own.
        _require_whole(await asyncio.to_thread(verify_locally, self._request), self.rows)

    async def _ask(self, name: str, expected: int) -> None:
        async with connected(self.site.auditor) as connection:
            found = await connection.fetchval(SQL[name], self.chain_id, timeout=600)
        _require(found, expected)

    def _read(self, columns: str, joined: str = "") -> DataFrame:
        """Read pages in as many partitions as the check has."""
        table = DatabaseTable(self.spark, self._source, self.chain_id)
        address = chain_address(self._source)
        # By the end of its page, which is in the index: a part could not be read from the view.
        query = f"""(
            SELECT page.last_id, {columns} FROM chain_page AS page {joined}
            WHERE page.chain_id = {self.chain_id}
        ) AS bare"""  # noqa: S608 - a number and names of ours
        fetched = FETCH_ROWS if joined else FETCH_PAGES
        return self.spark.read.jdbc(
            address.url,
            query,
            column="last_id",
            lowerBound=1,
            upperBound=self.rows + 1,
            numPartitions=table.rows.rdd.getNumPartitions(),
            properties={**address.properties, "fetchsize": str(fetched)},
        )

    def _count(self, rows: DataFrame) -> None:
        found = rows.agg(F.count("pid"), F.sum("id"), F.sum("pid")).collect()[0]
        _require(found[0], self.rows)


if __name__ == "__main__":
    serve(drive)
