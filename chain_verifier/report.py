"""The report of a verification, of one chain or several: as JSON, and as lines for people."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from chain_kernel.errors import OrderchainError, RefusedError
from chain_kernel.text import counted
from chain_verifier.findings import Finding, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.config import KeptSeal, VerifyRequest
    from chain_verifier.findings import Findings


class Verdict(enum.StrEnum):
    """Degree to which a chain has been proven."""

    COMPLETE = "complete"
    """One path from start to head, and both came from outside the data."""
    CONTIGUOUS = "contiguous (head not known)"
    """One path, but only the data shows where it ends: later rows may be missing."""
    UNPROVEN = "not proven (nothing was read)"
    """No finding, but no proof either: no row, and no head to check that against, or a topic
    without a frame of a chain that has rows."""
    BROKEN = "broken"
    """There are findings."""


CLEAN_VERDICTS: Final = (Verdict.COMPLETE, Verdict.CONTIGUOUS)


def verdict_of(findings: Findings, horizon: Horizon, *, is_proof: bool) -> Verdict:
    """Return what is proven of rows in which `findings` were found, between the ends of `horizon`.

    `is_proof` says whether what was read proves anything at all.
    """
    if findings.total:
        return Verdict.BROKEN
    if not is_proof:
        return Verdict.UNPROVEN
    return Verdict.CONTIGUOUS if horizon.head is None else Verdict.COMPLETE


class SourceReport(Struct, frozen=True, kw_only=True):
    """Contents of one source."""

    source: str
    verdict: Verdict
    rows: int
    """Rows of the chain between start and head."""
    first_id: int | None
    last_id: int | None
    counts: dict[str, int]
    """Findings by kind; those of neighbouring rows are one."""
    row_counts: dict[str, int]
    """The same, with one for each of the rows."""
    notes: tuple[str, ...]
    """A fact that is no fault, but should be known."""
    seconds: float


class Comparison(Struct, frozen=True, kw_only=True):
    """Differences between the rows of `source` and those of `against`."""

    source: str
    against: str
    is_equal: bool
    counts: dict[str, int]
    """Findings by kind: lacking, surplus, differing; those of neighbouring rows are one."""
    row_counts: dict[str, int]
    """Rows lacking, in surplus, and differing."""
    seconds: float


class ExportedSeal(Struct, frozen=True, kw_only=True):
    """A seal that was kept outside the database."""

    id: int
    seal: str
    """In hexadecimal."""
    committed_at: str | None
    exported_at: str | None

    def __str__(self) -> str:
        """Return the row, with the times as far as they are known."""
        times = {"committed": self.committed_at, "exported": self.exported_at}
        known = ", ".join(f"{name} {time}" for name, time in times.items() if time)
        return f"row {self.id}" + (f" ({known})" if known else "")


class ExportedSeals(Struct, frozen=True, kw_only=True):
    """Up to where the database still has the history that was sealed outside of it."""

    count: int
    last_fitting: ExportedSeal | None
    """The last one before the first that does not fit; None if there is none before it."""
    first_misfit: ExportedSeal | None
    """Rows up to it, after the last one that fits, were changed or removed after it was exported.
    Later seals may fit again: those that were exported after the change."""

    def __str__(self) -> str:
        """Return one sentence for people."""
        fits, misfit = self.last_fitting, self.first_misfit
        if misfit is None:
            fit = "fits" if self.count == 1 else "fit"
            return f"{counted(self.count, 'exported seal')} {fit}; the last one is of {fits}"
        if fits is None:
            return (
                f"exported seals: none before {misfit}, which does not fit: rows up to it were "
                "changed or removed"
            )
        return (
            f"exported seals: {fits} is the last that fits, {misfit} the first "
            "that does not: rows between them were changed or removed after that export"
        )


def exported_seals(kept: Sequence[KeptSeal], findings: Sequence[Finding]) -> ExportedSeals | None:
    """Return which of the `kept` fit, given what was found; None without any.

    The first findings by id, of seals that do not fit, are enough.
    """
    misfits = [each.id for each in findings if each.kind is Kind.KEPT_SEAL and each.id is not None]
    misfit_id = min(misfits, default=None)
    ids = sorted({each.id for each in kept if misfit_id is None or each.id < misfit_id})
    by_id = {
        each.id: ExportedSeal(
            id=each.id,
            seal=each.seal.hex(),
            committed_at=each.committed_at,
            exported_at=each.exported_at,
        )
        for each in kept
    }
    if not kept:
        return None
    return ExportedSeals(
        count=len(kept),
        last_fitting=by_id[ids[-1]] if ids else None,
        first_misfit=None if misfit_id is None else by_id[misfit_id],
    )


class Report(Struct, frozen=True, kw_only=True):
    """The outcome of a verification that read every source to its end."""

    chain_id: int
    verdict: Verdict
    start: int
    head: int | None
    """The head that the sources were checked against; None when it was not known."""
    database_id: str | None = None
    """The database of the chain, with the seal after its last row; None without a database."""
    head_seal: str | None = None
    """In hexadecimal, as the database states it."""
    seals_checked: bool = False
    """True if every seal of the database was recomputed from the rows."""
    exported_seals: ExportedSeals | None = None
    """Which seals that were kept outside fit the database; None if none were given."""
    keys_compared: bool = False
    """True if two rows under one key would have been found, between start and head."""
    sources: tuple[SourceReport, ...]
    comparisons: tuple[Comparison, ...]
    counts: dict[str, int]
    """All findings by kind; those of neighbouring rows are one."""
    row_counts: dict[str, int]
    """The same, with one for each of the rows."""
    findings: tuple[Finding, ...]
    """A sample: at most `FINDINGS_MAX` of each kind of each source; `counts` counts all."""
    spark_start_seconds: float
    """0 when a session was given."""
    seconds: float
    """In total."""

    @property
    def is_clean(self) -> bool:
        """True if something was proven, and there is no finding."""
        return self.verdict in CLEAN_VERDICTS

    def to_dict(self) -> dict[str, Any]:
        """Return the report in JSON's own types."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built | {
            "is_clean": self.is_clean,
            "findings": [msgspec.to_builtins(one) | {"text": one.text} for one in self.findings],
        }

    def to_json(self) -> str:
        """Return the report as one JSON object, indented."""
        return msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=2).decode()

    def lines(self, findings_max: int = 20) -> list[str]:
        """Return the report as lines for people: at most `findings_max` findings per source."""
        head = "not known" if self.head is None else str(self.head)
        keys = "keys compared" if self.keys_compared else "keys not compared"
        lines = [f"chain {self.chain_id}: {self.verdict} (start {self.start}, head {head}), {keys}"]
        if self.exported_seals is not None:
            lines.append(f"  {self.exported_seals}")
        for source in self.sources:
            lines += self._source_lines(source, findings_max)
        for comparison in self.comparisons:
            lines += self._comparison_lines(comparison, findings_max)
        spark = f", {self.spark_start_seconds:.1f} s of it to start Spark"
        lines.append(f"{self.seconds:.1f} s{spark if self.spark_start_seconds else ''}")
        return lines

    def _source_lines(self, source: SourceReport, findings_max: int) -> list[str]:
        span = "" if source.first_id is None else f", ids {source.first_id} to {source.last_id}"
        headline = f"  {source.source}: {counted(source.rows, 'row')}{span}: {source.verdict}"
        own = [f for f in self.findings if f.source == source.source and not f.against]
        return [
            f"{headline} ({source.seconds:.1f} s)",
            *(f"    note: {note}" for note in source.notes),
            *_finding_lines(own, sum(source.counts.values()), findings_max),
        ]

    def _comparison_lines(self, comparison: Comparison, findings_max: int) -> list[str]:
        own = [
            finding
            for finding in self.findings
            if (finding.source, finding.against) == (comparison.source, comparison.against)
        ]
        counts = ", ".join(f"{count:,} {kind}" for kind, count in comparison.row_counts.items())
        headline = f"  {comparison.source} against {comparison.against}: {counts or 'equal'}"
        return [
            f"{headline} ({comparison.seconds:.1f} s)",
            *_finding_lines(own, sum(comparison.counts.values()), findings_max),
        ]


def _finding_lines(findings: list[Finding], count: int, findings_max: int) -> list[str]:
    shown = [f"    {finding.text}" for finding in findings[:findings_max]]
    return shown if count <= len(shown) else [*shown, f"    ... {count - len(shown)} more"]


class Unverified(Struct, frozen=True, kw_only=True):
    """A chain about which nothing is known: it could not be read, or not to its end."""

    chain_id: int
    is_refused: bool
    """A source could not be used; else it broke off."""
    reason: str


class ChainsReport(Struct, frozen=True, kw_only=True):
    """The outcome of each chain, in the order in which they were requested."""

    outcomes: tuple[Report | Unverified, ...]
    spark_start_seconds: float
    """0 when a session was given, and in the local mode."""
    seconds: float
    """In total."""

    @property
    def reports(self) -> list[Report]:
        """The chains that were read to their end."""
        return [one for one in self.outcomes if isinstance(one, Report)]

    @property
    def unverified(self) -> list[Unverified]:
        """The chains that were not read to their end."""
        return [one for one in self.outcomes if isinstance(one, Unverified)]

    @property
    def is_clean(self) -> bool:
        """True if every chain was read to its end and proven, and there is no finding."""
        return not self.unverified and all(report.is_clean for report in self.reports)

    def to_json(self) -> str:
        """Return the report as one JSON object, indented; each chain as it would be alone."""
        content = {
            "is_clean": self.is_clean,
            "chains": [
                one.to_dict()
                if isinstance(one, Report)
                else msgspec.to_builtins(one) | {"verdict": "not verified", "is_clean": False}
                for one in self.outcomes
            ],
            "spark_start_seconds": self.spark_start_seconds,
            "seconds": self.seconds,
        }
        return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()

    def lines(self) -> list[str]:
        """Return the report as lines for people: chain by chain, then a count per outcome."""
        lines = []
        for one in self.outcomes:
            if isinstance(one, Report):
                lines += one.lines()
            else:
                lines.append(f"chain {one.chain_id}: not verified: {one.reason}")
        clean = sum(report.is_clean for report in self.reports)
        broken = sum(report.verdict is Verdict.BROKEN for report in self.reports)
        spark = f", {self.spark_start_seconds:.1f} s of it to start Spark"
        lines.append(
            f"{counted(len(self.outcomes), 'chain')}: {clean} clean, {broken} with "
            f"findings, {len(self.outcomes) - clean - broken} not verified; "
            f"{self.seconds:.1f} s{spark if self.spark_start_seconds else ''}"
        )
        return lines


def outcomes_of(
    chains: Sequence[VerifyRequest | Unverified], verify: Callable[[VerifyRequest], Report]
) -> tuple[Report | Unverified, ...]:
    """Verify one chain after the other; one that cannot be verified does not stop the others."""
    outcomes: list[Report | Unverified] = []
    for one in chains:
        try:
            outcomes.append(one if isinstance(one, Unverified) else verify(one))
        except OrderchainError as error:
            outcomes.append(unverified_by(error, one.chain_id))
    return tuple(outcomes)


def unverified_by(error: OrderchainError, chain_id: int) -> Unverified:
    """Return the outcome of a chain that could not be verified because of `error`."""
    is_refused = isinstance(error, RefusedError)
    return Unverified(chain_id=chain_id, is_refused=is_refused, reason=str(error))
