"""The steps of a verification, the same for Spark and plain Python: open, look, compare, report."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from chain_kernel.errors import InputError, SettingError, SourceBroken
from chain_kernel.text import counted
from chain_verifier.checks.buckets import Bucket, Horizon, is_one_path, locate, row_count
from chain_verifier.checks.neighbours import gathered
from chain_verifier.checks.published import PublishedTopic
from chain_verifier.config import DatabaseSource, bucket_bits
from chain_verifier.database_facts import DatabaseFacts
from chain_verifier.findings import Finding, Findings, Kind, joined_findings
from chain_verifier.report import Comparison, Report, SourceReport, exported_seals, verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chain_verifier.checks.buckets import Opener
    from chain_verifier.config import ContradictedMark, KeptSeal, Source, VerifyRequest

    ShowStep = Callable[[str], None]
    from chain_verifier.checks.topic_frames import Ranges


def require_own_rows(source: str, chain_id: int, own: int, others: int) -> None:
    """Refuse a source that holds rows, but none of the chain: it is the wrong one."""
    if others and not own:
        found = f"{counted(others, 'row')}, none of chain {chain_id}"
        raise InputError(source, found, "rows of the chain")


KEY_BITS: Final = 63
"""A key is a positive bigint: Spark's literals have no unsigned type."""


class ScanPlan(Struct, frozen=True, kw_only=True):
    """Settings that every scan of one verification has in common."""

    key: int
    """Seeds every hash; drawn for each verification, so that no data can be made to fit."""
    bits: int
    """Buckets hold 2^bits ids."""
    leaf_bits: int
    """A damaged bucket is split down to 2^bits ids before its rows are read."""
    fingerprints: bool
    """True if whole rows are hashed, to be compared with another source."""


def how_to_scan(request: VerifyRequest, spans: Iterable[int | None]) -> ScanPlan:
    """Choose for sources that are `spans` ids wide; None is a width that is not known."""
    found = list(spans)
    known = None if None in found else max((span for span in found if span is not None), default=0)
    return ScanPlan(
        key=secrets.randbits(KEY_BITS),
        bits=request.bucket_bits or bucket_bits(known),
        leaf_bits=request.leaf_bits,
        fingerprints=len(found) > 1,
    )


class ScannedSource(Struct, frozen=True, kw_only=True):
    """One source after its scan."""

    buckets: list[Bucket]
    findings: Findings
    notes: tuple[str, ...]
    """A fact that is no fault, but should be known."""
    rows_beyond: int
    """Rows after the head; whether they are wrong is not decided here."""
    beyond_id: int | None
    """The highest id of those."""
    is_whole: bool = False
    """The first look showed that all rows are one path, so nothing is left to look for."""

    @classmethod
    def whole(cls, path: Bucket) -> ScannedSource:
        """Return the source whose rows are all one path."""
        return cls(
            buckets=[path], findings=Findings(), notes=(), rows_beyond=0, beyond_id=None,
            is_whole=True,
        )  # fmt: skip

    @classmethod
    def bare(cls) -> ScannedSource:
        """Return the source that has no row, where there should be none."""
        return cls(
            buckets=[], findings=Findings(), notes=(), rows_beyond=0, beyond_id=None, is_whole=True
        )

    @property
    def rows(self) -> int:
        """Rows of the chain between start and head."""
        return row_count(self.buckets)


@contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds since the start, to the millisecond."""
    began = time.monotonic()
    yield lambda: round(time.monotonic() - began, 3)


def differing_buckets(
    one: Sequence[Bucket], other: Sequence[Bucket], horizon: Horizon
) -> list[Bucket]:
    """Return the buckets, from either side, whose rows are not the same multiset.

    Only those that can hold a row between the ends of `horizon`, which may be narrower than what
    was scanned of either.
    """
    left = {bucket.number: bucket for bucket in one}
    right = {bucket.number: bucket for bucket in other}
    differing = []
    for number in sorted(left.keys() | right.keys()):
        here, there = left.get(number), right.get(number)
        bucket = here or there
        if bucket is None or horizon.is_before(bucket.upper_id - 1):
            continue
        if horizon.head is not None and bucket.lower_id > horizon.head:
            continue
        if here is None or there is None or _print_of(here) != _print_of(there):
            differing.append(bucket)
    return differing


def _print_of(bucket: Bucket) -> tuple[int, int]:
    return bucket.rows, bucket.fingerprint


class OpenTable(Protocol):
    """One source, opened; the modes add how its rows are read."""

    @property
    def name(self) -> str:
        """Its name in the report."""
        ...

    @property
    def has_positions(self) -> bool:
        """True if rows have an order of their own, which must be that of the chain."""
        ...

    @property
    def may_lack(self) -> Ranges:
        """Ranges (after, until] whose rows need not be there."""
        ...

    @property
    def span(self) -> int | None:
        """About how many ids lie between the first row and the last; None if not known."""
        ...


def link_faults(
    table: OpenTable, buckets: Sequence[Bucket], horizon: Horizon, opener: Opener, leaf_bits: int
) -> Findings:
    """Return what keeps `buckets` from being one path. Raises SourceBroken if it is gone."""
    if is_one_path(buckets, horizon):
        return Findings()
    skips = table.may_lack
    faults = locate(table.name, buckets, horizon, opener, leaf_bits, skips=skips)
    if not faults and not skips:
        raise SourceBroken(table.name, "it changed while it was being read")
    return gathered(faults)


T = TypeVar("T", bound=OpenTable)


class Mode(Protocol[T]):
    """Work that Spark and Python each do in their own way. Raises RefusedError, SourceBroken."""

    def open(self, source: Source) -> T:
        """Open a source; the database comes before all others."""
        ...

    def examine(self, table: T, horizon: Horizon, how: ScanPlan) -> ScannedSource:
        """Scan a source, and name its faults."""
        ...

    def rows_beyond(self, table: T, horizon: Horizon, head: int) -> Findings:
        """Return the rows after `head`, which may itself be after that of `horizon`."""
        ...

    def compare(self, table: T, base: T, differing: Sequence[Bucket], horizon: Horizon) -> Findings:
        """Return what `table` lacks, has in surplus, or holds with other content than `base`.

        Only in the buckets that differ, and only between the ends of `horizon`, which may be
        narrower than what was scanned of either.
        """
        ...

    def forged_findings(self, topic: T, base: T, horizon: Horizon) -> Findings:
        """Return the rows of forged frames after the start that `base` does not hold with the same
        content.
        """
        ...

    def check_seals(self, table: T, kept: Sequence[KeptSeal]) -> Findings:
        """Return the batches of the database whose rows do not give their seals."""
        ...

    def repeated_keys(
        self, table: T, horizon: Horizon, window_rows: int, how: ScanPlan
    ) -> Findings:
        """Return the rows whose key an earlier row of `table` has, within the window of keys."""
        ...

    def write_findings(self, findings: Findings, folder: str) -> None:
        """Add all `findings` to the files in `folder`."""
        ...


class SourceResult(Struct, Generic[T], frozen=True, kw_only=True):
    """One source with what was found in it."""

    table: T
    horizon: Horizon
    scanned: ScannedSource
    findings: Findings
    notes: tuple[str, ...]
    seconds: float


def horizon_of(request: VerifyRequest, facts: DatabaseFacts | None) -> Horizon:
    """Return the horizon: a requested head counts only if it is after the database's own."""
    heads = [request.head, facts.head.last_id if facts else None]
    return Horizon(
        chain_id=request.chain_id,
        start=request.start,
        head=max((head for head in heads if head is not None), default=None),
    )


class Verification(Generic[T]):
    """One run over one chain: all tables are opened first, and looked at up to the same head."""

    def __init__(self, request: VerifyRequest, mode: Mode[T], progress: ShowStep) -> None:
        self._request = request
        self._mode = mode
        self._progress = progress
        self._began = time.monotonic()
        self._facts: DatabaseFacts | None = None

    def run(self, start_seconds: float = 0.0) -> Report:
        """Verify, and report; `start_seconds` is what starting Spark took, and counts too."""
        self._began -= start_seconds
        # The database first: what the others hold was committed before its head was read, or a
        # second look at the head decides.
        ordered = sorted(self._request.sources, key=lambda s: not isinstance(s, DatabaseSource))
        self._progress("opening " + ", ".join(source.name for source in ordered))
        tables = [self._mode.open(source) for source in ordered]
        self._facts = next((table for table in tables if isinstance(table, DatabaseFacts)), None)
        self._require_seals_of_rows()
        self._horizon = horizon_of(self._request, self._facts)
        how = how_to_scan(self._request, (table.span for table in tables))
        # Only the keys of the first source: the others are compared with it row by row.
        looked = [self._look(table, how, has_keys=table is tables[0]) for table in tables]
        compared = [self._compare(one, looked[0]) for one in looked[1:]]
        every = joined_findings(
            [*(one.findings for one in looked), *(found for _, found in compared)]
        )
        # Rows that went to the archive meanwhile would look like lost ones. A boundary is set
        # before rows go, so it is read after them.
        facts = self._facts
        if every.total and facts is not None and facts.boundary_now() != facts.head.boundary_id:
            raise SourceBroken(facts.name, "rows were archived while it was read: verify again")
        if self._request.findings_folder is not None:
            self._progress(f"writing {every.total_by_row} findings")
            self._mode.write_findings(every, self._request.findings_folder)
        return self._report(looked, [one for one, _ in compared], every, start_seconds)

    def _require_seals_of_rows(self) -> None:
        """Refuse a seal of an archived row: no batch of the database ends there any more."""
        boundary_id = 0 if self._facts is None else self._facts.head.boundary_id
        lowest = min((kept.id for kept in self._request.kept_seals), default=boundary_id)
        if lowest < boundary_id:
            expected = f"at least {boundary_id}: `archive --check` proves archived rows"
            raise SettingError("row of the expected seal", lowest, expected)

    def _look(self, table: T, how: ScanPlan, *, has_keys: bool) -> SourceResult[T]:
        self._progress(f"checking {table.name}")
        with stopwatch() as seconds:
            topic = table if isinstance(table, PublishedTopic) else None
            horizon = topic.narrowed(self._horizon) if topic else self._horizon
            scanned = self._mode.examine(table, horizon, how)
            beyond, notes = self._judge_beyond(table, scanned, horizon)
            parts = [scanned.findings, beyond]
            if topic is not None:
                notes += topic.notes_on(horizon, self._horizon)
                parts.append(topic.disorder(horizon))
            parts.append(self._judge_count(table, scanned, joined_findings(parts)))
            # Pages that are paths between the ends that they name, and form one, misstate nothing.
            if isinstance(table, DatabaseFacts) and not scanned.is_whole:
                parts.append(table.page_faults())
            if table is self._facts and self._request.checks_seals:
                self._progress(f"recomputing the seals of {table.name}")
                parts.append(self._mode.check_seals(table, self._request.kept_seals))
            mark = self._request.contradicted_mark
            if table is self._facts and mark is not None:
                parts.append(gathered([mark_finding(table.name, mark)]))
            if has_keys:
                parts.append(self._judge_keys(table, horizon, how))
        return SourceResult(
            table=table,
            horizon=horizon,
            scanned=scanned,
            findings=joined_findings(parts),
            notes=(*scanned.notes, *notes),
            seconds=seconds(),
        )

    def _judge_beyond(
        self, table: T, scanned: ScannedSource, horizon: Horizon
    ) -> tuple[Findings, tuple[str, ...]]:
        """Separate rows that were committed after the head was read from rows that never were."""
        head = horizon.head
        if head is None or scanned.beyond_id is None:
            return Findings(), ()
        notes: tuple[str, ...] = ()
        if self._facts is not None and table is not self._facts:
            head_now = max(head, self._facts.head_now())
            if head_now > head:
                notes = (f"rows after the head {head} were committed since, and left out",)
            if scanned.beyond_id <= head_now:
                return Findings(), notes
            head = head_now
        return self._mode.rows_beyond(table, horizon, head), notes

    def _judge_count(self, table: T, scanned: ScannedSource, findings: Findings) -> Findings:
        """Check the number of rows against what the commits counted, if nothing else is wrong.

        A row that was removed together with the link to it leaves a path, one row short.
        """
        if not isinstance(table, DatabaseFacts) or findings.total:
            return Findings()
        expected = table.head.rows_after_start
        if expected is None or scanned.rows == expected:
            return Findings()
        finding = Finding(
            kind=Kind.ROW_COUNT, source=table.name, count=scanned.rows, expected_count=expected
        )
        return gathered([finding])

    def _judge_keys(self, table: T, horizon: Horizon, how: ScanPlan) -> Findings:
        window_rows = self._request.key_window_rows
        if window_rows is None:
            return Findings()
        self._progress(f"comparing the keys of {table.name}")
        return self._mode.repeated_keys(table, horizon, window_rows, how)

    def _compare(self, one: SourceResult[T], base: SourceResult[T]) -> tuple[Comparison, Findings]:
        name, against = one.table.name, base.table.name
        self._progress(f"comparing {name} with {against}")
        with stopwatch() as seconds:
            horizon = one.horizon.within(base.horizon)
            found = Findings()
            differing = differing_buckets(one.scanned.buckets, base.scanned.buckets, horizon)
            if differing:
                found = self._mode.compare(one.table, base.table, differing, horizon)
            if isinstance(one.table, PublishedTopic):
                # Wherever they are after the start: retention says nothing of disowned frames.
                forged = self._mode.forged_findings(one.table, base.table, self._horizon)
                found = joined_findings([found, forged])
        comparison = Comparison(
            source=name,
            against=against,
            is_equal=not found.total,
            counts=found.counts,
            row_counts=found.row_counts,
            seconds=seconds(),
        )
        return comparison, found

    def _report(
        self,
        looked: Sequence[SourceResult[T]],
        comparisons: Sequence[Comparison],
        every: Findings,
        start_seconds: float,
    ) -> Report:
        return Report(
            chain_id=self._request.chain_id,
            verdict=verdict_of(
                every, self._horizon, is_proof=all(self._is_proof(one) for one in looked)
            ),
            start=self._horizon.start,
            head=self._horizon.head,
            database_id=None if self._facts is None else self._facts.head.database_id,
            head_seal=None if self._facts is None else self._facts.head.seal.hex(),
            seals_checked=self._request.checks_seals,
            exported_seals=exported_seals(self._request.kept_seals, every.kept),
            keys_compared=self._request.key_window_rows is not None,
            sources=tuple(self._source_report(one) for one in looked),
            comparisons=tuple(comparisons),
            counts=every.counts,
            row_counts=every.row_counts,
            findings=every.kept,
            spark_start_seconds=round(start_seconds, 3),
            seconds=round(time.monotonic() - self._began, 3),
        )

    def _is_proof(self, one: SourceResult[Any]) -> bool:
        """Return whether what was read of a source proves anything: rows do, and so does their
        absence if it is known that there should be none.
        """
        if one.scanned.rows or one.scanned.rows_beyond:
            return True
        if isinstance(one.table, PublishedTopic) and one.table.is_silent:
            return self._horizon.head == self._horizon.start
        return self._horizon.head is not None

    def _source_report(self, one: SourceResult[Any]) -> SourceReport:
        buckets = one.scanned.buckets
        return SourceReport(
            source=one.table.name,
            verdict=verdict_of(one.findings, self._horizon, is_proof=self._is_proof(one)),
            rows=one.scanned.rows,
            first_id=min((bucket.first_id for bucket in buckets), default=None),
            last_id=max((bucket.last_id for bucket in buckets), default=None),
            counts=one.findings.counts,
            row_counts=one.findings.row_counts,
            notes=one.notes,
            seconds=one.seconds,
        )


def mark_finding(source: str, mark: ContradictedMark) -> Finding:
    """Return a contradicted mark as a finding of the database `source`."""
    return Finding(
        kind=Kind.CONTRADICTED_MARK,
        source=source,
        after_id=mark.after_id,
        until_id=mark.until_id,
        count=mark.count,
        seal="" if mark.found is None else mark.found.hex(),
        expected_seal=mark.seal.hex(),
        mark_id=mark.mark_id,
        verified_by=mark.verified_by,
        verified_at=mark.verified_at.astimezone(UTC).isoformat(timespec="seconds"),
    )
