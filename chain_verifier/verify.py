"""`verify`: reads the head, scans every source, compares them, and reports."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_verifier.config import (
    DatabaseSource,
    JournalSource,
    ParquetSource,
    Source,
    TopicSource,
    VerifyRequest,
    bucket_bits,
)
from chain_verifier.examine import Examined, How, examine
from chain_verifier.findings import Finding, Findings, Kind, gathered, joined
from chain_verifier.horizon import Horizon
from chain_verifier.jdbc import jdbc_address
from chain_verifier.open_rows import rows_beyond
from chain_verifier.published import notes_on, strays, without_skipped
from chain_verifier.reconcile import compare
from chain_verifier.report import Comparison, Report, SourceReport, Verdict
from chain_verifier.seals import check_seals
from chain_verifier.session import open_session
from chain_verifier.sources.database import DatabaseTable
from chain_verifier.sources.journal import JournalTable, require_readable
from chain_verifier.sources.parquet import ParquetTable
from chain_verifier.sources.table import Table
from chain_verifier.sources.topic import TopicTable
from chain_verifier.spark_errors import as_broken
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    Progress = Callable[[str], None]

_KEY_BITS: Final = 63
"""A key is a positive bigint: Spark's literals have no unsigned type."""

_LONG_RUN_BYTES: Final = 128 * 2**20
"""From here on a scan runs long enough for Java's thorough compiler to pay for itself (measured:
half a million rows of a journal cost as much CPU time either way)."""


def _silent(line: str) -> None:
    """Tell nobody."""


def verify(
    request: VerifyRequest, session: SparkSession | None = None, progress: Progress = _silent
) -> Report:
    """Verify the sources of `request`, each alone and then against each other.

    Starts Spark, and stops it again, unless a `session` is given. `progress` is told what goes on,
    a line at a time. Raises RefusedError (a source cannot be used, nothing was found out) or
    SourceBroken (it broke off: nothing is known of the whole). A report means that all was read.
    """
    _require_distinct(request.sources)
    if request.checks_seals and not any(isinstance(s, DatabaseSource) for s in request.sources):
        raise SettingError("source", None, "the database, whose seals are to be checked")
    for source in request.sources:
        _require_usable(source)
    began = time.monotonic()
    if session is not None:
        return _Verification(request, session, progress, began, 0.0).run()
    progress("starting Spark")
    kafka = any(isinstance(source, TopicSource) for source in request.sources)
    is_long = _is_long(request.sources)
    with open_session(request.master, is_long_run=is_long, kafka=kafka) as own:
        start_seconds = time.monotonic() - began
        return _Verification(request, own, progress, began, start_seconds).run()


def _require_distinct(sources: Sequence[Source]) -> None:
    names = [source.name for source in sources]
    if not names:
        raise SettingError("source", None, "at least one source")
    for name in names:
        if names.count(name) > 1:
            raise SettingError("source", name, "each source once")


def _require_usable(source: Source) -> None:
    """Refuse what cannot be used, as far as that shows before Spark takes seconds to start."""
    if isinstance(source, DatabaseSource):
        jdbc_address(source.dsn)
    if isinstance(source, JournalSource):
        require_readable(source)


def _is_long(sources: Sequence[Source]) -> bool:
    """Whether the files alone are so large that tuning Spark for a short run would cost more."""
    paths = [Path(s.path) for s in sources if isinstance(s, JournalSource | ParquetSource)]
    return sum(path.stat().st_size for path in paths if path.is_file()) > _LONG_RUN_BYTES


class _Looked(Struct, frozen=True, kw_only=True):
    """One source with what was found in it."""

    table: Table
    horizon: Horizon
    examined: Examined
    findings: Findings
    notes: tuple[str, ...]
    seconds: float


class _Verification:
    """One run: the tables are opened first, so that all are looked at up to the same head."""

    def __init__(
        self,
        request: VerifyRequest,
        spark: SparkSession,
        progress: Progress,
        began: float,
        start_seconds: float,
    ) -> None:
        self._request = request
        self._spark = spark
        self._progress = progress
        self._began = began
        self._start_seconds = start_seconds

    def run(self) -> Report:
        # The database first: what the others hold was committed before its head was read, or a
        # second look at the head tells.
        ordered = sorted(self._request.sources, key=lambda s: not isinstance(s, DatabaseSource))
        self._progress("opening " + ", ".join(source.name for source in ordered))
        self._database: DatabaseTable | None = None
        tables = [self._opened(source) for source in ordered]
        self._horizon = self._horizon_of_all()
        is_published = any(isinstance(table, TopicTable) for table in tables)
        self._skips: Sequence[tuple[int, int]] = (
            self._database.skips() if self._database and is_published else ()
        )
        how = self._how(tables)
        looked = [self._look(table, how) for table in tables]
        return self._report(looked, [self._compare(one, looked[0]) for one in looked[1:]])

    def _opened(self, source: Source) -> Table:
        with as_broken(source.name):
            if isinstance(source, DatabaseSource):
                self._database = DatabaseTable(self._spark, source, self._request.chain_id)
                return self._database
            if isinstance(source, TopicSource):
                return TopicTable(self._spark, source, self._request.chain_id, self._database)
            if isinstance(source, JournalSource):
                return JournalTable(self._spark, source)
            return ParquetTable(self._spark, source)

    def _horizon_of_all(self) -> Horizon:
        """Return the horizon: a head that is asked for can only lie behind the database's own."""
        heads = [self._request.head, self._database.head.last_id if self._database else None]
        return Horizon(
            chain_id=self._request.chain_id,
            start=self._request.start,
            head=max((head for head in heads if head is not None), default=None),
        )

    def _how(self, tables: Sequence[Table]) -> How:
        spans = [table.span for table in tables]
        known = None if None in spans else max(span for span in spans if span is not None)
        return How(
            key=secrets.randbits(_KEY_BITS),
            bits=self._request.bucket_bits or bucket_bits(known),
            leaf_bits=self._request.leaf_bits,
            fingerprints=len(tables) > 1,
        )

    def _look(self, table: Table, how: How) -> _Looked:
        self._progress(f"checking {table.name}")
        with _stopwatch() as seconds:
            horizon = self._horizon
            if isinstance(table, TopicTable):
                horizon = table.narrowed(horizon)
            examined = examine(table, horizon, how)
            beyond, notes = self._judge_beyond(table, examined, horizon)
            findings = joined([examined.findings, beyond])
            more: tuple[str, ...] = ()
            if isinstance(table, TopicTable):
                more = notes_on(table, horizon, self._horizon, self._skips)
                findings = joined([without_skipped(findings, self._skips), table.findings(horizon)])
            counted = self._judge_count(table, examined, findings)
            sealed = self._judge_seals(table)
        return _Looked(
            table=table,
            horizon=horizon,
            examined=examined,
            findings=joined([findings, counted, sealed]),
            notes=(*examined.notes, *notes, *more),
            seconds=seconds(),
        )

    def _judge_beyond(
        self, table: Table, examined: Examined, horizon: Horizon
    ) -> tuple[Findings, tuple[str, ...]]:
        """Tell rows that were committed after the head was read from rows that never were."""
        head = horizon.head
        if head is None or examined.beyond_id is None:
            return Findings(), ()
        notes: tuple[str, ...] = ()
        if self._database is not None and table is not self._database:
            head_now = max(head, self._database.head_now())
            if head_now > head:
                notes = (f"rows behind the head {head} were committed since, and left out",)
            if examined.beyond_id <= head_now:
                return Findings(), notes
            head = head_now
        with as_broken(table.name):
            return rows_beyond(table.name, table.rows, horizon, head), notes

    def _judge_count(self, table: Table, examined: Examined, findings: Findings) -> Findings:
        """Hold the number of rows against what the commits counted, where nothing else is wrong.

        A row that was taken out together with the link to it leaves a path behind, one row short.
        """
        if not isinstance(table, DatabaseTable) or findings.total or self._request.start:
            return Findings()
        expected = table.head.rows_counted
        if examined.rows == expected:
            return Findings()
        finding = Finding(
            kind=Kind.ROW_COUNT,
            source=table.name,
            count=examined.rows,
            expected_count=expected,
        )
        return gathered([finding])

    def _judge_seals(self, table: Table) -> Findings:
        request = self._request
        if not isinstance(table, DatabaseTable) or not request.checks_seals:
            return Findings()
        self._progress(f"recomputing the seals of {table.name}")
        return check_seals(self._spark, table, request.chain_id, request.kept_seal)

    def _compare(self, one: _Looked, base: _Looked) -> tuple[Comparison, Findings]:
        name, against = one.table.name, base.table.name
        self._progress(f"comparing {name} with {against}")
        with _stopwatch() as seconds:
            horizon = one.horizon.within(base.horizon)
            skips = self._skips if isinstance(one.table, TopicTable) else ()
            found = compare(one.table, one.examined, base.table, base.examined, horizon, skips)
            if isinstance(one.table, TopicTable):
                with as_broken(f"{name} against {against}"):
                    found = joined([found, strays(one.table, base.table, horizon)])
        comparison = Comparison(
            source=name,
            against=against,
            is_equal=not found.total,
            counts=found.counts,
            seconds=seconds(),
        )
        return comparison, found

    def _report(
        self, looked: Sequence[_Looked], compared: Sequence[tuple[Comparison, Findings]]
    ) -> Report:
        every = joined([*(one.findings for one in looked), *(found for _, found in compared)])
        return Report(
            chain_id=self._request.chain_id,
            verdict=self._verdict(every),
            start=self._horizon.start,
            head=self._horizon.head,
            sources=tuple(map(self._source_report, looked)),
            comparisons=tuple(comparison for comparison, _ in compared),
            counts=every.counts,
            findings=every.kept,
            spark_start_seconds=round(self._start_seconds, 3),
            seconds=round(time.monotonic() - self._began, 3),
        )

    def _source_report(self, one: _Looked) -> SourceReport:
        buckets = one.examined.buckets
        return SourceReport(
            source=one.table.name,
            verdict=self._verdict(one.findings),
            rows=one.examined.rows,
            first_id=min((bucket.first_id for bucket in buckets), default=None),
            last_id=max((bucket.last_id for bucket in buckets), default=None),
            counts=one.findings.counts,
            notes=one.notes,
            seconds=one.seconds,
        )

    def _verdict(self, findings: Findings) -> Verdict:
        if findings.total:
            return Verdict.BROKEN
        return Verdict.CONTIGUOUS if self._horizon.head is None else Verdict.COMPLETE


@contextmanager
def _stopwatch() -> Iterator[Callable[[], float]]:
    """Give a function that tells the seconds since the start."""
    began = time.monotonic()
    yield lambda: round(time.monotonic() - began, 3)
