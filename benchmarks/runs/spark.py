"""The cost of the verifier's check beside a scan, and beside what one would write instead; and of a
replay, and of many chains, beside plain Python.

Over Parquet, over two lengths of it in executors whose memory is bounded, and over a database. Each
repeat is a driver of its own, whose ways of looking at the rows are timed once they are warm.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.chains import SQL, Site, connected
from benchmarks.load import Figures  # noqa: TC001 - `serve` looks it up
from benchmarks.processes import RunFailed, call, serve
from benchmarks.rivals.engine import copied_chains, filled_chain
from chain_kernel.model import Event
from chain_verifier.config import (
    DatabaseSource,
    ParquetSource,
    VerifyRequest,
    bucket_bits,
)
from chain_verifier.dataframe.fold import Fold, digest_of
from chain_verifier.dataframe.frame import verify_frame
from chain_verifier.dataframe.replay import replay
from chain_verifier.local.verify import verify_chains_locally, verify_locally
from chain_verifier.report import ChainsReport, Report, Verdict
from chain_verifier.spark.database import DatabaseTable
from chain_verifier.spark.own_session import ARROW_RECORDS
from chain_verifier.spark.session import open_session
from chain_verifier.spark.verify import verify, verify_chains

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from benchmarks.load import Arm


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of the Parquet files, which goes with this process."""
    return tempfile.TemporaryDirectory(prefix="orderchain-bench-")


async def run(site: Site, arm: Arm) -> Figures:
    """Run one repeat over rows that are made once. Raises RunFailed where they do not verify."""
    way, rows = str(arm.settings["way"]), int(arm.settings["rows"])
    if way == "database":
        chain_id = await filled_chain(site, rows)
        end = call(over_database, keeps_errors=False, site=site, chain_id=chain_id, rows=rows)
    elif way == "chains":
        chains = await copied_chains(site, rows, _CHAINS)
        end = call(over_chains, keeps_errors=False, site=site, chains=chains, rows=rows)
    else:
        kind = {"wide": "wide", "replay": "books"}.get(way, "narrow")
        path = f"{_folder().name}/{kind}-{rows}"
        if not Path(path).exists():  # noqa: ASYNC240 - once
            async with call(write_rows, path=path, rows=rows, kind=kind) as writer:
                await writer.result()
        functions = {"executors": in_executors, "replay": over_books}
        function = functions.get(way, over_parquet)
        end = call(function, keeps_errors=False, path=path, rows=rows)
    async with end as driver:
        return await driver.result()


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


async def _timed(
    ways: Mapping[str, Callable[[], Awaitable[None]]], base: str, *warm: str
) -> Figures:
    """Return the seconds of each way, and their ratio to those of `base`; `warm` go first."""
    for name in warm:
        await ways[name]()
    seconds: dict[str, float] = {}
    for name, way in ways.items():
        began = time.perf_counter()
        await way()
        seconds[name] = time.perf_counter() - began
    return {f"{name}_seconds": value for name, value in seconds.items()} | {
        f"{name}_to_{base}": value / seconds[base] for name, value in seconds.items()
    }


def _require(found: object, expected: object) -> None:
    if found != expected:
        raise RunFailed(f"{found!r}, expected {expected!r}")


def _require_whole(report: Report, rows: int) -> None:
    _require((report.verdict, report.sources[0].rows), (Verdict.COMPLETE, rows))


# -- rows of a chain as Parquet --------------------------------------------------------------------

CHAIN_ID: Final = 1
_FILE_ROWS: Final = 5_000_000
_ID: Final = "id + 1 + id div 1000 * 7"
"""Ids skip a few numbers after every batch, as they do where partitions and terms change."""
_BEFORE: Final = "if(id = 0, 0, id + (id - 1) div 1000 * 7)"
_NARROW: Final = ("'k'", "1700000000000000000", "binary('')")
_WIDE: Final = (
    "concat('client-', id % 64, '#', id)",
    "1700000000000000000 + id * 1000",
    "unhex(substr(concat(sha2(string(id), 512), sha2(string(-id), 512)), 1, 200))",
)
_BOOKS: Final = (
    "concat('symbol-', id % 1000, '#', id)",
    "1700000000000000000 + id * 1000",
    "unhex(lpad(hex(id % 97 + 1), 16, '0'))",
)
_KINDS: Final = {"narrow": _NARROW, "wide": _WIDE, "books": _BOOKS}
"""Key, time and payload of a row by its number."""


def _head_of(rows: int) -> int:
    return rows + (rows - 1) // 1_000 * 7


async def write_rows(path: str, rows: int, kind: str) -> Figures:
    """Write a chain of `rows` rows.

    Narrow rows have one and the same key, time and payload (none), so that reading them is as
    cheap as possible and cannot hide what the check costs. Wide ones have keys of their own and
    payloads of 100 bytes that cannot be compressed. Those of books name one of 1,000 symbols, and a
    quantity in 8 bytes.
    """
    key, time_ns, payload = _KINDS[kind]
    columns = (
        f"{CHAIN_ID} AS chain_id", f"{_ID} AS id", f"{_BEFORE} AS pid", f"{key} AS key",
        f"{time_ns} AS event_time_ns", f"{payload} AS payload",
    )  # fmt: skip
    with _spark({}) as spark:
        numbered = spark.range(0, rows, 1, max(1, rows // _FILE_ROWS))
        numbered.selectExpr(*columns).write.parquet(path, compression="zstd")
    return {}


# -- over Parquet ----------------------------------------------------------------------------------

_RIVAL_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "200",
}
_WARM: Final = ("scan", "check")


async def over_parquet(path: str, rows: int) -> Figures:
    """Scan and check; where rows have no payloads also what one would write instead of the check.

    The rivals see nothing of payloads.
    """
    with _spark({}) as spark:
        its = _Parquet(spark, path, rows)
        ways = {"scan": its.scan, "check": its.check}
        if "narrow" in Path(path).name:
            ways |= {"frame": its.frame, "frame_by_pid": its.frame_by_pid}
            ways |= {"lag": its.lag, "anti_join": its.anti_join}
        return await _timed(ways, "scan", *_WARM)


@dataclass
class _Parquet:
    """One chain in Parquet, and the ways to look at it."""

    spark: SparkSession
    path: str
    rows: int

    def _frame(self) -> DataFrame:
        return self.spark.read.parquet(self.path)

    async def scan(self) -> None:
        """Aggregate the columns that the check reads."""
        ends = [F.min("id"), F.max("id"), F.sum("id"), F.min("pid"), F.max("pid"), F.sum("pid")]
        row = self._frame().agg(F.count("chain_id"), *ends).collect()[0]
        _require(row[0], self.rows)

    async def check(self) -> None:
        """Verify, as `chainctl verify --source parquet:PATH --head ID` does."""
        source = ParquetSource(path=self.path)
        request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,), head=_head_of(self.rows))
        _require_whole(verify(request, session=self.spark), self.rows)

    async def frame(self) -> None:
        """Verify as any table, by ids that count: those here, without the numbers that skip."""
        counted = self._frame().select(F.expr("id - (id - 1) div 1007 * 7").alias("id"))
        _require(verify_frame(counted).isEmpty(), True)

    async def frame_by_pid(self) -> None:
        """Verify as any table whose rows name the one before."""
        _require(verify_frame(self._frame(), pid="pid").isEmpty(), True)

    async def lag(self) -> None:
        """Count the rows that do not name the one before them in their bucket."""
        frame = self._frame().select("id", "pid")
        bucket = F.shiftright("id", bucket_bits(_head_of(self.rows)))
        window = Window.partitionBy(bucket).orderBy("id")
        found = frame.select("pid", F.lag("id").over(window).alias("before"))
        broken = F.col("before").isNotNull() & (F.col("before") != F.col("pid"))
        self._as_spark_is_by_default()
        _require(found.where(broken).count(), 0)

    async def anti_join(self) -> None:
        """Count the rows whose pid is no row's id; the first one's is none."""
        frame = self._frame()
        ids = frame.select(F.col("id").alias("pid"))
        self._as_spark_is_by_default()
        _require(frame.select("pid").join(ids, "pid", "left_anti").count(), 1)

    def _as_spark_is_by_default(self) -> None:
        """Set what suits these ways better than the verifier's settings; they come last."""
        for name, value in _RIVAL_SETTINGS.items():
            self.spark.conf.set(name, value)


# -- a replay beside plain Python ------------------------------------------------------------------

_SYMBOLS: Final = 1_000


_SIZES: Final = 100


def new_book(symbol: str) -> dict[str, Any]:
    """Return what a matching service may keep of a symbol: how much came, by size."""
    return {"symbol": symbol, "last_id": 0, "quantity": 0, "by_size": [0] * _SIZES}


def by_order(book: dict[str, Any], orders: Sequence[Event]) -> tuple[dict[str, Any], tuple[()]]:
    """Apply orders one by one."""
    for order in orders:
        quantity = int.from_bytes(order.payload, "big")
        book["last_id"] = order.id
        book["quantity"] += quantity
        book["by_size"][quantity] += 1
    return book, ()


def by_column(book: dict[str, Any], orders: pa.RecordBatch) -> tuple[dict[str, Any], tuple[()]]:
    """Apply orders together."""
    quantities = np.frombuffer(b"".join(orders.column("payload").to_pylist()), ">i8")
    book["last_id"] = orders.column("id")[-1].as_py()
    book["quantity"] += int(quantities.sum())
    counts = np.bincount(quantities, minlength=_SIZES)
    book["by_size"] = (np.array(book["by_size"]) + counts).tolist()
    return book, ()


async def over_books(path: str, rows: int) -> Figures:
    """Replay the same rows into the same books in plain Python, and on Spark by either fold."""
    with _spark({}) as spark:
        spark.conf.set(ARROW_RECORDS, 10_000)  # as a replay by the command has it
        its = _Books(spark, path, rows)
        ways = {"plain": its.plain, "by_order": its.by_order, "by_column": its.by_column}
        return await _timed(ways, "plain", "by_column")


@dataclass
class _Books:
    """Rows in Parquet, and the ways to make books of them; each must give the same books."""

    spark: SparkSession
    path: str
    rows: int
    digests: frozenset[bytes] = frozenset()

    async def plain(self) -> None:
        """Read with pyarrow, and apply each order as it comes."""
        books: dict[str, dict[str, Any]] = {}
        columns = ["id", "pid", "key", "event_time_ns", "payload"]
        for path in sorted(Path(self.path).glob("*.parquet")):  # noqa: ASYNC240 - nothing waits
            for batch in pq.ParquetFile(path).iter_batches(10_000, columns=columns):
                for order in map(Event, *(batch.column(name).to_pylist() for name in columns)):
                    symbol = order.key.partition("#")[0]
                    book = books.get(symbol)
                    if book is None:
                        book = books[symbol] = new_book(symbol)
                    by_order(book, (order,))
        _require(len(books), _SYMBOLS)
        self._compare(digest_of(book) for book in books.values())

    async def by_order(self) -> None:
        """Replay with an object per order."""
        self._replay(Fold(start=new_book, step=by_order))

    async def by_column(self) -> None:
        """Replay with the columns of many orders."""
        self._replay(Fold(start=new_book, step=by_column, columns=("id", "payload")))

    def _replay(self, fold: Fold[dict[str, Any]]) -> None:
        rows = self.spark.read.parquet(self.path)
        symbol = F.substring_index("key", "#", 1)
        states = replay(rows, fold, by=symbol).states.collect()
        self._compare(bytes(state["digest"]) for state in states)

    def _compare(self, digests: Iterable[bytes]) -> None:
        found = frozenset(digests)
        self.digests = self.digests or found
        _require(found == self.digests, True)


# -- in two executors: does the check grow as a scan does, and does its memory stay? ---------------

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


async def in_executors(path: str, rows: int) -> Figures:
    """Scan and check in executors of one core and 2 GB; also what was spilled, and their heaps."""
    with tempfile.TemporaryDirectory(prefix="orderchain-events-") as folder:
        log = Path(folder) / "log"
        log.mkdir()
        # Otherwise the executors keep their files in the folder of Spark itself.
        os.environ["SPARK_WORKER_DIR"] = f"{folder}/work"
        settings = _SETTINGS | {"spark.eventLog.dir": log.as_uri()}
        with _spark(settings, _EXECUTORS, driver_memory="1g") as spark:
            its = _Parquet(spark, path, rows)
            found = await _timed({"scan": its.scan, "check": its.check}, "scan", *_WARM)
        return {**found, **_of_log(log)}


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


# -- over a database: does the check keep the reading side busy? -----------------------------------


async def over_database(site: Site, chain_id: int, rows: int) -> Figures:
    """Read the same rows of one chain in every way; PostgreSQL answers on the cores of Spark."""
    with _spark({}) as spark:
        its = _Database(spark, site, chain_id, rows)
        ways = {"bare": its.bare, "check": its.check, "local": its.local, "lag": its.lag}
        return await _timed(ways, "bare", "bare", "check")


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

    async def bare(self) -> None:
        """Count and sum in Spark the rows that workers read."""
        rows = DatabaseTable(self.spark, self._source, self.chain_id).rows_with(())
        row = rows.agg(F.count("pid"), F.sum("id"), F.sum("pid")).collect()[0]
        _require(row[0], self.rows)

    async def check(self) -> None:
        """Verify, as `chainctl verify --source database` does."""
        _require_whole(verify(self._request, session=self.spark), self.rows)

    async def local(self) -> None:
        """Verify without Spark, which has an event loop of its own."""
        _require_whole(await asyncio.to_thread(verify_locally, self._request), self.rows)

    async def lag(self) -> None:
        """Ask PostgreSQL itself."""
        async with connected(self.site.auditor) as connection:
            _require(await connection.fetchval(SQL["lag"], self.chain_id, timeout=600), 0)


# -- over many chains of a database: in one job, or one after the other ----------------------------

_CHAINS: Final = 1_000


async def over_chains(site: Site, chains: list[int], rows: int) -> Figures:
    """Verify chains of `rows` rows each, as `--all-chains` does it: by Spark, and without."""
    source = DatabaseSource(database=site.auditor)
    requests = [VerifyRequest(chain_id=number, sources=(source,)) for number in chains]

    def require_whole(found: ChainsReport) -> None:
        for report in found.outcomes:
            if not isinstance(report, Report):
                raise RunFailed(report.reason)
            _require_whole(report, rows)

    with _spark({}) as spark:

        async def check() -> None:
            require_whole(verify_chains(requests, spark))

        async def local() -> None:
            require_whole(await asyncio.to_thread(verify_chains_locally, requests))

        return await _timed({"local": local, "check": check}, "local")


if __name__ == "__main__":
    serve(write_rows, over_parquet, in_executors, over_books, over_database, over_chains)
