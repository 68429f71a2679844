"""What both modes say of the same sources: Spark names every fault, the local mode the first."""

from collections.abc import Iterable

from msgspec.structs import replace
from pyspark.sql import SparkSession

from chain_verifier.config import VerifyRequest
from chain_verifier.findings import KINDS_OF_BATCHES, Finding, Kind
from chain_verifier.local.verify import FIRST_ONLY, verify_locally
from chain_verifier.report import Report
from chain_verifier.spark.verify import verify

LINKS = frozenset(
    {Kind.GAP, Kind.FORK, Kind.SECOND_ROOT, Kind.ORPHAN, Kind.DUPLICATE, Kind.PID_NOT_BELOW_ID}
)
"""What is found by following the links of one source, up to the first break."""


def verified_by_both(request: VerifyRequest, spark: SparkSession) -> Report:
    """Verify by both modes, and return the report of Spark once they agree."""
    by_spark = verify(request, spark)
    require_agreement(verify_locally(request), by_spark)
    return by_spark


def require_agreement(locally: Report, by_spark: Report) -> None:
    """Require the same answer, and of what is wrong the first of each check.

    Rows, notes and verdicts of each source are the same, too.
    """
    for one, other in zip(locally.sources, by_spark.sources, strict=True):
        notes = tuple(note for note in one.notes if note != FIRST_ONLY)
        assert (one.source, one.verdict, one.rows) == (other.source, other.verdict, other.rows)
        assert (one.first_id, one.last_id, notes) == (other.first_id, other.last_id, other.notes)
        assert (FIRST_ONLY in one.notes) is bool(one.counts)
    answers = [(one.verdict, one.head, one.exported_seals) for one in (locally, by_spark)]
    assert answers[0] == answers[1]
    equal = [[one.is_equal for one in report.comparisons] for report in (locally, by_spark)]
    assert equal[0] == equal[1]
    require_first(locally.findings, by_spark.findings)


def require_first(found: Iterable[Finding], every: Iterable[Finding]) -> None:
    """Require that `found` are among `every`, one of each check that has any, the first of it."""
    own, faults = list(found), list(every)
    for one in own:
        alike = [fault for fault in faults if _place(fault) == _place(one)]
        assert any(_holds(fault, one) for fault in alike), (one, alike)
        assert one.kind not in LINKS or _met(one) == min(map(_met, alike)), (one, alike)
    assert {_place(one) for one in own} == {_place(fault) for fault in faults}


def _place(finding: Finding) -> tuple[object, ...]:
    """The check that finds it: of one kind in one source, all breaks of the links being of one."""
    if finding.against:
        return finding.source, finding.against
    return finding.source, "link" if finding.kind in LINKS else finding.kind


def _holds(fault: Finding, one: Finding) -> bool:
    """Whether `one` is the fault, or the first row or batch of it."""
    if fault.kind in KINDS_OF_BATCHES:
        first = replace(fault, until_id=one.until_id, batches=None, expected_count=None)
        return first == replace(one, expected_count=None)
    return replace(fault, last_id=None, rows=None) == one


def _met(finding: Finding) -> float:
    """Which row shows a break of the links, if they are followed in the order of ids."""
    if finding.kind is Kind.GAP:
        return (finding.after_id or 0) + 0.5
    place = finding.ids[1] if finding.ids else finding.id
    assert place is not None
    return place
