"""`verify` on Spark: one session for all chains, each of them verified by the same steps."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_kernel.text import silent
from chain_verifier.checks.neighbours import gathered
from chain_verifier.checks.seals import BatchCheck, genesis_of, seal_ends
from chain_verifier.config import (
    CONNECTIONS_MAX,
    DatabaseSource,
    JournalSource,
    ParquetSource,
    TopicSource,
    require_sound,
)
from chain_verifier.findings import Findings, joined_findings
from chain_verifier.report import ChainsReport, Unverified, outcomes_of
from chain_verifier.spark import source_check
from chain_verifier.spark.database import DatabaseTable, chain_address
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.files import JournalTable, ParquetTable
from chain_verifier.spark.finding_frame import (
    finding_frame,
    require_free,
    sampled_rows,
    write_findings,
)
from chain_verifier.spark.session import open_session
from chain_verifier.spark.topic import TopicTable
from chain_verifier.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.config import KeptSeal, Source, VerifyRequest
    from chain_verifier.report import Report
    from chain_verifier.spark.table import Table
    from chain_verifier.verification import ScanPlan, ShowStep


# -- seals -----------------------------------------------------------------------------------------

MISFITS_SCHEMA: Final = (
    "kind string, id bigint, until_id bigint, pid bigint, ids array<bigint>, count bigint, "
    "expected_count bigint, epoch bigint, expected_epoch bigint, computed array<binary>"
)
"""One row for each thing that is wrong with a batch; `computed` are the seals that its rows gave,
if they did not give the stored one.
"""

_MISFIT_COLUMNS: Final = tuple(column.split()[0] for column in MISFITS_SCHEMA.split(", "))


def seal_checker(
    genesis: bytes, twice: Collection[int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return what takes batches sorted by id, each with what is stored of it, and yields one row
    per misfit: rows that give another seal than the stored one, a batch with another number of
    rows or another range than it states, an epoch that decreases.

    The batches that end with an id in `twice` end one part, and are repeated before the next part,
    so that the batches after them are judged by them: they are reported once.
    """

    def check(record_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        checked = BatchCheck(genesis)
        for record_batch in record_batches:
            misfits: list[dict[str, object]] = []
            for batch in record_batch.to_pylist():
                is_first = not checked.follows(batch)
                found = checked.misfits(batch)
                misfits += [] if is_first and batch["id"] in twice else found
            yield _arrow(misfits)

    return check


def _arrow(misfits: list[dict[str, object]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {"kind": pa.string(), "ids": pa.list_(pa.int64()), "computed": pa.list_(pa.binary())}
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in _MISFIT_COLUMNS])
    full = [{name: misfit.get(name) for name in _MISFIT_COLUMNS} for misfit in misfits]
    return pa.RecordBatch.from_pylist(full, schema=schema)


_ARROW_ROWS: Final = 10_000
"""Rows of usual batches that cross to Python at once: a few megabytes."""

_ARROW_BATCHES: Final = 256
"""Maximum number of batches that cross at once: if they are of uneven sizes, 256 of the largest
usual ones (5,000 rows) are 150 MB."""


def check_seals(
    spark: SparkSession, table: DatabaseTable, chain_id: int, kept: Sequence[KeptSeal]
) -> Findings:
    """Return every batch whose rows do not give its seal, its count, its range or its epoch.

    Reads every column of every page once, as the seals cover them; nothing is unpacked, sorted or
    shuffled. `kept` are seals that were exported. Raises SourceBroken.
    """
    with as_broken(table.name), _arrow_records(spark, _records_at_once(table)):
        # Few for a whole chain; what is counted and what is shown comes from one look.
        misfits = _misfits(spark, table, chain_id).persist()

        def computed(last_id: int) -> list[bytes]:
            of_batch = (F.col("until_id") == last_id) & F.col("computed").isNotNull()
            seals = misfits.where(of_batch).select(F.explode("computed")).collect()
            return [bytes(seal) for (seal,) in seals]

        try:
            found = sampled_rows(finding_frame(misfits, source=table.name))
            ends = gathered(seal_ends(table, chain_id, kept, computed))
        finally:
            misfits.unpersist()
        return joined_findings([found, ends])


def _misfits(spark: SparkSession, table: DatabaseTable, chain_id: int) -> DataFrame:
    """Check batches against what is stored of them."""
    batches, ends = table.sealed()
    connections = min(CONNECTIONS_MAX, spark.sparkContext.defaultParallelism)
    checker = seal_checker(genesis_of(table, chain_id), frozenset(ends))
    return batches.coalesce(connections).mapInArrow(checker, MISFITS_SCHEMA)


def _records_at_once(table: DatabaseTable) -> int:
    rows_per_batch = table.head.rows_counted // max(1, table.head.batches_counted)
    return min(_ARROW_BATCHES, _ARROW_ROWS // max(1, rows_per_batch) + 1)


@contextmanager
def _arrow_records(spark: SparkSession, count: int) -> Iterator[None]:
    """Allow `count` records to cross to Python at once, maybe many more than for a topic."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    usual = spark.conf.get(name)
    spark.conf.set(name, str(count))
    try:
        yield
    finally:
        spark.conf.set(name, str(usual))


# -- one run over one session ----------------------------------------------------------------------

_LONG_RUN_BYTES: Final = 128 * 2**20
"""From this size on, a scan runs long enough for Java's thorough compiler to pay for itself
(measured: half a million rows of a journal cost as much CPU time either way)."""


def verify(
    request: VerifyRequest,
    session: SparkSession | None = None,
    progress: ShowStep = silent,
) -> Report:
    """Verify the sources of `request`, each alone and then against each other.

    Starts Spark, and stops it afterwards, unless a `session` is given. `progress` receives one line
    per step. Raises RefusedError (a source cannot be used, nothing was found out) or SourceBroken
    (it broke off: nothing is known of the whole). A report means that everything was read.
    """
    with _spark_for([request], session, progress) as (spark, start_seconds):
        return Verification(request, SparkMode(spark, request), progress).run(start_seconds)


def verify_chains(
    chains: Sequence[VerifyRequest | Unverified],
    session: SparkSession | None = None,
    progress: ShowStep = silent,
) -> ChainsReport:
    """Verify several chains, one after the other, in one Spark.

    Raises RefusedError for what shows before anything is read. Later, a chain that cannot be
    verified does not stop the others: its outcome gives the reason, as for one that is `Unverified`
    already.
    """
    began = time.monotonic()
    requests = [one for one in chains if not isinstance(one, Unverified)]
    with _spark_for(requests, session, progress) as (spark, start_seconds):

        def verified(request: VerifyRequest) -> Report:
            progress(f"chain {request.chain_id}")
            return Verification(request, SparkMode(spark, request), progress).run()

        outcomes = outcomes_of(chains, verified)
    return ChainsReport(
        outcomes=outcomes,
        spark_start_seconds=round(start_seconds, 3),
        seconds=round(time.monotonic() - began, 3),
    )


@contextmanager
def _spark_for(
    requests: Sequence[VerifyRequest],
    session: SparkSession | None,
    progress: ShowStep,
) -> Iterator[tuple[SparkSession, float]]:
    """Yield a Spark that can read all sources, and how long its start took."""
    require_sound(requests)
    sources = [source for request in requests for source in request.sources]
    for source in sources:
        if isinstance(source, DatabaseSource):
            chain_address(source)
    folders = {r.findings_folder for r in requests if r.findings_folder is not None}
    if session is not None:
        _require_free(session, folders)
        yield session, 0.0
        return
    progress("starting Spark")
    began = time.monotonic()
    kafka = any(isinstance(source, TopicSource) for source in sources)
    master = next((request.master for request in requests), None)
    with open_session(master, is_long_run=_is_long(sources), kafka=kafka) as own:
        start_seconds = time.monotonic() - began
        _require_free(own, folders)
        yield own, start_seconds


def _require_free(spark: SparkSession, folders: Iterable[str]) -> None:
    for folder in folders:
        require_free(spark, folder)


def _is_long(sources: Sequence[Source]) -> bool:
    """Whether the files alone are so large that tuning Spark for a short run would cost more."""
    paths = [Path(s.path) for s in sources if isinstance(s, JournalSource | ParquetSource)]
    return sum(path.stat().st_size for path in paths if path.is_file()) > _LONG_RUN_BYTES


class SparkMode:
    """The steps of a verification as jobs of Spark. Implements `verification.Mode`."""

    def __init__(self, spark: SparkSession, request: VerifyRequest) -> None:
        self._spark = spark
        self._chain_id = request.chain_id
        self._start = request.start
        self._database: DatabaseTable | None = None

    def open(self, source: Source) -> Table:
        """Open a source, the database first."""
        with as_broken(source.name):
            if isinstance(source, DatabaseSource):
                self._database = DatabaseTable(self._spark, source, self._chain_id, self._start)
                return self._database
            if isinstance(source, TopicSource):
                return TopicTable(self._spark, source, self._chain_id, self._database)
            if isinstance(source, JournalSource):
                return JournalTable(self._spark, source)
            return ParquetTable(self._spark, source)

    examine = staticmethod(source_check.examine)
    compare = staticmethod(source_check.compare)

    def rows_beyond(self, table: Table, horizon: Horizon, head: int) -> Findings:
        """Return the rows after `head`."""
        with as_broken(table.name):
            return source_check.rows_beyond(table.name, table.rows, horizon, head)

    def forged_findings(self, topic: Table, base: Table, horizon: Horizon) -> Findings:
        """Return the rows of forged frames that `base` does not hold with the same content."""
        forged = topic.forged_rows if isinstance(topic, TopicTable) else None
        return (
            Findings()
            if forged is None
            else source_check.forged_findings(topic.name, forged, base, horizon)
        )

    def check_seals(self, table: Table, kept: Sequence[KeptSeal]) -> Findings:
        """Recompute the seals of the database."""
        if not isinstance(table, DatabaseTable):
            return Findings()
        return check_seals(self._spark, table, self._chain_id, kept)

    def repeated_keys(
        self, table: Table, horizon: Horizon, window_rows: int, how: ScanPlan
    ) -> Findings:
        """Return the rows whose key an earlier row has."""
        return source_check.repeated_keys(table, horizon, window_rows, how.bits)

    def write_findings(self, findings: Findings, folder: str) -> None:
        """Add all `findings` to the files in `folder`."""
        write_findings(self._spark, self._chain_id, findings, folder)
