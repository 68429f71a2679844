"""`verify` in plain Python: reads the head, scans every source, compares them, and reports."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_verifier.config import DatabaseSource, JournalSource, ParquetSource, bucket_bits
from chain_verifier.findings import Finding, Findings, Kind, gathered, joined
from chain_verifier.horizon import Horizon
from chain_verifier.local.compare import compare
from chain_verifier.local.database import DatabaseTable
from chain_verifier.local.examine import Examined, How, examine, rows_beyond
from chain_verifier.local.journal import JournalTable
from chain_verifier.local.table import Table
from chain_verifier.report import Comparison, Report, SourceReport, Verdict
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chain_verifier.config import Source, VerifyRequest

    Progress = Callable[[str], None]

_KEY_BITS: Final = 63
"""As long a key as the other mode's."""


def _silent(line: str) -> None:
    """Tell nobody."""


def verify_locally(request: VerifyRequest, progress: Progress = _silent) -> Report:
    """Verify the sources of `request`, each alone and then against each other, without Spark.

    Memory stays flat however long the chain: rows pass by in pages. Raises RefusedError (a source
    cannot be used, nothing was found out) or SourceBroken (it broke off: nothing is known of the
    whole). A report means that all was read.
    """
    _require_distinct(request.sources)
    if request.master is not None:
        raise SettingError("master", request.master, "none: the local mode runs without Spark")
    with ExitStack() as stack:
        return _Verification(request, progress, stack).run()


def _require_distinct(sources: Sequence[Source]) -> None:
    names = [source.name for source in sources]
    if not names:
        raise SettingError("source", None, "at least one source")
    for name in names:
        if names.count(name) > 1:
            raise SettingError("source", name, "each source once")


class _Looked(Struct, frozen=True, kw_only=True):
    """One source with what was found in it."""

    table: Table
    examined: Examined
    findings: Findings
    notes: tuple[str, ...]
    seconds: float


class _Verification:
    """One run: the tables are opened first, so that all are looked at up to the same head."""

    def __init__(self, request: VerifyRequest, progress: Progress, stack: ExitStack) -> None:
        self._request = request
        self._progress = progress
        self._stack = stack
        self._began = time.monotonic()

    def run(self) -> Report:
        # The database first: what the others hold was committed before its head was read, or a
        # second look at the head tells.
        ordered = sorted(self._request.sources, key=lambda s: not isinstance(s, DatabaseSource))
        self._progress("opening " + ", ".join(source.name for source in ordered))
        tables = [self._opened(source) for source in ordered]
        self._database = next((t for t in tables if isinstance(t, DatabaseTable)), None)
        self._horizon = self._horizon_of_all()
        how = self._how(tables)
        looked = [self._look(table, how) for table in tables]
        return self._report(looked, [self._compare(one, looked[0]) for one in looked[1:]])

    def _opened(self, source: Source) -> Table:
        if isinstance(source, DatabaseSource):
            table = DatabaseTable(source, self._request.chain_id)
            self._stack.callback(table.close)
            return table
        if isinstance(source, JournalSource):
            return JournalTable(source)
        if isinstance(source, ParquetSource):
            return _parquet_table(source)
        raise SettingError("source", source.name, "database, journal:FILE or parquet:PATH")

    def _horizon_of_all(self) -> Horizon:
        """Return the horizon: a head that is asked for can only lie behind the database's own."""
        heads = [self._request.head, self._database.head if self._database else None]
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
            examined = examine(table, self._horizon, how)
            beyond, notes = self._judge_beyond(table, examined)
            findings = joined([examined.findings, beyond])
            counted = self._judge_count(table, examined, findings)
        return _Looked(
            table=table,
            examined=examined,
            findings=joined([findings, counted]),
            notes=(*examined.notes, *notes),
            seconds=seconds(),
        )

    def _judge_beyond(self, table: Table, examined: Examined) -> tuple[Findings, tuple[str, ...]]:
        """Tell rows that were committed after the head was read from rows that never were."""
        head = self._horizon.head
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
        return rows_beyond(table, self._horizon, head), notes

    def _judge_count(self, table: Table, examined: Examined, findings: Findings) -> Findings:
        """Hold the number of rows against what the commits counted, where nothing else is wrong.

        A row that was taken out together with the link to it leaves a path behind, one row short.
        """
        if not isinstance(table, DatabaseTable) or findings.total or self._request.start:
            return Findings()
        if examined.rows == table.rows_counted:
            return Findings()
        finding = Finding(
            kind=Kind.ROW_COUNT,
            source=table.name,
            count=examined.rows,
            expected_count=table.rows_counted,
        )
        return gathered([finding])

    def _compare(self, one: _Looked, base: _Looked) -> tuple[Comparison, Findings]:
        name, against = one.table.name, base.table.name
        self._progress(f"comparing {name} with {against}")
        with _stopwatch() as seconds:
            found = compare(one.table, one.examined, base.table, base.examined, self._horizon)
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
            spark_start_seconds=0,
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


def _parquet_table(source: ParquetSource) -> Table:
    """Open Parquet; only this asks for pyarrow, which is no small installation."""
    from chain_verifier.local.parquet import ParquetTable

    return ParquetTable(source)


@contextmanager
def _stopwatch() -> Iterator[Callable[[], float]]:
    """Give a function that tells the seconds since the start."""
    began = time.monotonic()
    yield lambda: round(time.monotonic() - began, 3)
