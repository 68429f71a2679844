"""What a verification found: for machines as JSON, for people as lines."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from chain_verifier.findings import Finding
from orderchain.counted import counted

if TYPE_CHECKING:
    from chain_verifier.findings import Findings
    from chain_verifier.horizon import Horizon


class Verdict(enum.StrEnum):
    """What has been proven."""

    COMPLETE = "complete"
    """One path from start to head, and both came from outside the data."""
    CONTIGUOUS = "contiguous (head not known)"
    """One path, but where it ends only the data says: later rows may be missing."""
    UNPROVEN = "not proven (nothing was read)"
    """No finding, but nothing to prove anything by either: no row, and no head to hold that
    against, or a topic without a frame of a chain that has rows."""
    BROKEN = "broken"
    """There are findings."""


CLEAN_VERDICTS: Final = (Verdict.COMPLETE, Verdict.CONTIGUOUS)


def verdict_of(findings: Findings, horizon: Horizon, *, is_proof: bool) -> Verdict:
    """Return what is proven of rows in which `findings` were found, between those ends.

    `is_proof` says whether what was read says anything at all.
    """
    if findings.total:
        return Verdict.BROKEN
    if not is_proof:
        return Verdict.UNPROVEN
    return Verdict.CONTIGUOUS if horizon.head is None else Verdict.COMPLETE


class SourceReport(Struct, frozen=True, kw_only=True):
    """What one source holds."""

    source: str
    verdict: Verdict
    rows: int
    """Rows of the chain between start and head."""
    first_id: int | None
    last_id: int | None
    counts: dict[str, int]
    """Findings by kind."""
    notes: tuple[str, ...]
    """What is no fault, but should be known."""
    seconds: float


class Comparison(Struct, frozen=True, kw_only=True):
    """How the rows of `source` differ from those of `against`."""

    source: str
    against: str
    is_equal: bool
    counts: dict[str, int]
    """Rows lacking, in surplus, and differing."""
    seconds: float


class Report(Struct, frozen=True, kw_only=True):
    """The outcome of a verification that read every source to its end."""

    chain_id: int
    verdict: Verdict
    start: int
    head: int | None
    """The head that the sources were held against; None when it was not known."""
    keys_compared: bool = False
    """Whether two rows under one key would have been found, between start and head."""
    sources: tuple[SourceReport, ...]
    comparisons: tuple[Comparison, ...]
    counts: dict[str, int]
    """All findings by kind."""
    findings: tuple[Finding, ...]
    """A sample: at most `FINDINGS_MAX` of each kind of each source; `counts` counts all."""
    spark_start_seconds: float
    """0 when a session was given."""
    seconds: float
    """In all."""

    @property
    def is_clean(self) -> bool:
        """Whether something was proven, and there is no finding."""
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
        """Return the report as lines for people, with at most `findings_max` findings a source."""
        head = "not known" if self.head is None else str(self.head)
        keys = "keys compared" if self.keys_compared else "keys not compared"
        told = [f"chain {self.chain_id}: {self.verdict} (start {self.start}, head {head}), {keys}"]
        for source in self.sources:
            told += self._source_lines(source, findings_max)
        for comparison in self.comparisons:
            told += self._comparison_lines(comparison, findings_max)
        spark = f", {self.spark_start_seconds:.1f} s of it to start Spark"
        told.append(f"{self.seconds:.1f} s{spark if self.spark_start_seconds else ''}")
        return told

    def _source_lines(self, source: SourceReport, findings_max: int) -> list[str]:
        span = "" if source.first_id is None else f", ids {source.first_id} to {source.last_id}"
        told = f"  {source.source}: {counted(source.rows, 'row')}{span}: {source.verdict}"
        own = [f for f in self.findings if f.source == source.source and not f.against]
        return [
            f"{told} ({source.seconds:.1f} s)",
            *(f"    note: {note}" for note in source.notes),
            *_finding_lines(own, sum(source.counts.values()), findings_max),
        ]

    def _comparison_lines(self, comparison: Comparison, findings_max: int) -> list[str]:
        own = [
            finding
            for finding in self.findings
            if (finding.source, finding.against) == (comparison.source, comparison.against)
        ]
        counts = ", ".join(f"{count} {kind}" for kind, count in comparison.counts.items())
        told = f"  {comparison.source} against {comparison.against}: {counts or 'equal'}"
        return [
            f"{told} ({comparison.seconds:.1f} s)",
            *_finding_lines(own, sum(comparison.counts.values()), findings_max),
        ]


def _finding_lines(findings: list[Finding], count: int, findings_max: int) -> list[str]:
    shown = [f"    {finding.text}" for finding in findings[:findings_max]]
    return shown if count <= len(shown) else [*shown, f"    ... {count - len(shown)} more"]
