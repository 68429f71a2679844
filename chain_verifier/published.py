"""What a topic need not hold: ranges that the publisher skipped, and said so in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.findings import Finding, Findings, Kind
from chain_verifier.reconcile import by_id, findings_of, pairs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_verifier.horizon import Horizon
    from chain_verifier.sources.table import Table
    from chain_verifier.sources.topic import TopicTable

    Ranges = Sequence[tuple[int, int]]


def notes_on(
    topic: TopicTable, horizon: Horizon, of_all: Horizon, skips: Ranges
) -> tuple[str, ...]:
    """Return what `topic` holds beside its rows, and what it need not hold."""
    told = [f"rows behind {after} up to {until} were skipped" for after, until in skips]
    if horizon.head != of_all.head:
        told.append(f"rows behind {horizon.head} are not known to be published yet")
    return (*topic.notes, *told)


def without_skipped(findings: Findings, skips: Ranges) -> Findings:
    """Return `findings` without the gaps that lie wholly within a range that was skipped."""
    dropped = sum(_is_skipped(finding, skips) for finding in findings.kept)
    if not dropped:
        return findings
    kept = tuple(finding for finding in findings.kept if not _is_skipped(finding, skips))
    gaps = findings.counts[Kind.GAP.value] - dropped
    others = {kind: count for kind, count in findings.counts.items() if kind != Kind.GAP.value}
    return Findings(kept=kept, counts=others | ({Kind.GAP.value: gaps} if gaps else {}))


def _is_skipped(finding: Finding, skips: Ranges) -> bool:
    if finding.kind is not Kind.GAP or finding.after_id is None or finding.until_id is None:
        return False
    return any(after <= finding.after_id and finding.until_id <= until for after, until in skips)


def strays(topic: TopicTable, base: Table, horizon: Horizon) -> Findings:
    """Return the rows of forged frames that `base` does not hold, or holds with other content."""
    forged = topic.forged_rows
    if forged is None:
        return Findings()
    here = by_id(forged.distinct())
    there = base.rows.where(F.col("chain_id") == horizon.chain_id)
    pairs = pairs_of(here, by_id(there.join(here.select("id"), "id", "left_semi")))
    return findings_of(pairs.where(F.col("kind") != Kind.LACKING.value), topic.name, base.name)
