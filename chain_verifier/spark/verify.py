"""`verify` on Spark: one session for all chains, each of them verified by the same steps."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chain_kernel.text import silent
from chain_verifier.checks.neighbours import gathered
from chain_verifier.checks.seals import seal_ends
from chain_verifier.config import (
    DatabaseSource,
    JournalSource,
    ParquetSource,
    TopicSource,
    require_sound,
)
from chain_verifier.dataframe.together import look_at_all
from chain_verifier.findings import Findings
from chain_verifier.report import ChainsReport, Unverified, outcomes_of
from chain_verifier.spark import comparison, source_check
from chain_verifier.spark.database import DatabaseTable, rows_of
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.files import JournalTable, ParquetTable
from chain_verifier.spark.finding_frame import (
    require_free,
    write_findings,
)
from chain_verifier.spark.keys import repeated_keys
from chain_verifier.spark.own_session import own_session
from chain_verifier.spark.seals import check_seals
from chain_verifier.spark.session import open_session
from chain_verifier.spark.shipping import ship
from chain_verifier.spark.statements import WorkerLogin
from chain_verifier.spark.topic import TopicTable
from chain_verifier.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.config import KeptSeal, Source, VerifyRequest
    from chain_verifier.dataframe.together import Proven
    from chain_verifier.report import Report
    from chain_verifier.spark.table import Table
    from chain_verifier.verification import ScannedSource, ScanPlan, ShowStep


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
    """Verify several chains in one Spark: those of one database together, in one job.

    A chain that is not proven whole there, or has other sources, is then verified alone.

    Raises RefusedError for what shows before anything is read. Later, a chain that cannot be
    verified does not stop the others: its outcome gives the reason, as for one that is `Unverified`
    already.
    """
    began = time.monotonic()
    requests = [one for one in chains if not isinstance(one, Unverified)]
    with _spark_for(requests, session, progress) as (spark, start_seconds):
        proven, away = look_at_all(spark, chains, progress)

        def verified(request: VerifyRequest) -> Report:
            known = proven.get(id(request))
            if known is None or known.scanned is None:
                progress(f"chain {request.chain_id}")
            return Verification(request, SparkMode(spark, request, known), progress).run()

        outcomes = outcomes_of([away.get(id(one), one) for one in chains], verified)
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
            WorkerLogin.of(source)
    folders = {r.findings_folder for r in requests if r.findings_folder is not None}
    if session is not None:
        with own_session(session) as own:
            _prepare(own, folders)
            yield own, 0.0
        return
    progress("starting Spark")
    began = time.monotonic()
    master = next((request.master for request in requests), None)
    paths = [Path(s.path) for s in sources if isinstance(s, JournalSource | ParquetSource)]
    in_files = sum(path.stat().st_size for path in paths if path.is_file())
    with open_session(master, is_long_run=in_files > _LONG_RUN_BYTES) as own:
        start_seconds = time.monotonic() - began
        _prepare(own, folders)
        yield own, start_seconds


def _prepare(spark: SparkSession, folders: Iterable[str]) -> None:
    ship(spark)
    # A file may have other columns of any name, `ID` beside `id`.
    spark.conf.set("spark.sql.caseSensitive", "true")
    for folder in folders:
        require_free(spark, folder)


class SparkMode:
    """The steps of a verification as jobs of Spark. Implements `verification.Mode`."""

    def __init__(
        self, spark: SparkSession, request: VerifyRequest, proven: Proven | None = None
    ) -> None:
        """`proven` is what a look at many chains has shown of this one."""
        self._spark = spark
        self._proven = proven
        self._chain_id = request.chain_id
        self._start = request.start
        self._database: DatabaseTable | None = None

    def open(self, source: Source) -> Table:
        """Open a source, the database first."""
        with as_broken(source.name):
            if self._proven is not None:
                return self._proven.table
            if isinstance(source, DatabaseSource):
                self._database = DatabaseTable(self._spark, source, self._chain_id, self._start)
                return self._database
            if isinstance(source, TopicSource):
                return TopicTable(self._spark, source, self._chain_id, self._database)
            if isinstance(source, JournalSource):
                return JournalTable(self._spark, source)
            return ParquetTable(self._spark, source)

    def examine(self, table: Table, horizon: Horizon, how: ScanPlan) -> ScannedSource:
        """Scan a source, and locate its faults if there are any."""
        if self._proven is not None and self._proven.scanned is not None:
            return self._proven.scanned
        return source_check.examine(table, horizon, how)

    compare = staticmethod(comparison.compare)

    def rows_beyond(self, table: Table, horizon: Horizon, head: int) -> Findings:
        """Return the rows after `head`."""
        with as_broken(table.name):
            return source_check.rows_beyond(table.name, rows_of(table), horizon, head)

    def forged_findings(self, topic: Table, base: Table, horizon: Horizon) -> Findings:
        """Return the rows of forged frames that `base` does not hold with the same content."""
        forged = topic.forged_rows if isinstance(topic, TopicTable) else None
        return (
            Findings()
            if forged is None
            else comparison.forged_findings(topic.name, forged, base, horizon)
        )

    def check_seals(self, table: Table, kept: Sequence[KeptSeal]) -> Findings:
        """Recompute the seals of the database."""
        if not isinstance(table, DatabaseTable):
            return Findings()
        if self._proven is not None and self._proven.are_seals_whole:
            ends = gathered(seal_ends(table, self._chain_id, kept, lambda _: ()))
            if not ends.total:
                return ends
        return check_seals(table, self._chain_id, kept)

    def repeated_keys(
        self, table: Table, horizon: Horizon, window_rows: int, how: ScanPlan
    ) -> Findings:
        """Return the rows whose key an earlier row has."""
        if self._proven is not None and self._proven.has_own_keys:
            return Findings()
        return repeated_keys(table, horizon, window_rows, how.bits)

    def write_findings(self, findings: Findings, folder: str) -> None:
        """Add all `findings` to the files in `folder`."""
        write_findings(self._spark, self._chain_id, findings, folder)
