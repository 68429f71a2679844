import json

from chain_verifier.checks.neighbours import gathered
from chain_verifier.config import FINDINGS_MAX
from chain_verifier.findings import Finding, Findings, Kind, joined_findings
from chain_verifier.report import Comparison, Report, SourceReport, Verdict


def gap(until_id: int, source: str = "a") -> Finding:
    return Finding(kind=Kind.GAP, source=source, after_id=until_id - 1, until_id=until_id)


def report_of(findings: Findings) -> Report:
    verdict = Verdict.BROKEN if findings.total else Verdict.COMPLETE
    source = SourceReport(
        source="a", verdict=verdict, rows=5, first_id=1, last_id=9, counts=findings.counts,
        row_counts=findings.row_counts, notes=("something to know",), seconds=0.5,
    )  # fmt: skip
    comparison = Comparison(
        source="b", against="a", is_equal=True, counts={}, row_counts={}, seconds=0.25
    )
    return Report(
        chain_id=7, verdict=verdict, start=0, head=9, sources=(source,),
        comparisons=(comparison,), counts=findings.counts, row_counts=findings.row_counts,
        findings=findings.kept, spark_start_seconds=1.0, seconds=2.0,
    )  # fmt: skip


def test_report_as_json_holds_what_its_lines_hold() -> None:
    found = json.loads(report_of(gathered([gap(3)])).to_json())
    assert found["verdict"] == "broken"
    assert found["is_clean"] is False
    assert found["counts"] == {"gap": 1}
    assert found["findings"] == [
        {
            "kind": "gap", "source": "a", "after_id": 2, "until_id": 3,
            "text": "order 3 is missing",
        }
    ]  # fmt: skip


def test_report_with_more_findings_than_lines_says_how_many_more() -> None:
    lines = report_of(gathered(map(gap, range(1, 31)))).lines(findings_max=20)
    assert sum("missing" in line for line in lines) == 20
    assert "    ... 10 more" in lines


def test_report_with_every_kind_has_a_text_for_it() -> None:
    for kind in Kind:
        assert Finding(kind=kind, source="s", id=1, pid=2, ids=(3, 4)).text


def test_findings_beyond_the_bound_are_counted_and_not_kept() -> None:
    every = tuple(map(gap, range(1, FINDINGS_MAX + 11)))
    found = gathered(every)
    assert len(found.kept) == FINDINGS_MAX
    assert found.counts == {"gap": FINDINGS_MAX + 10}
    assert found.wholes == (every,)
    both = joined_findings([found, gathered(every)])
    assert both.total == 2 * (FINDINGS_MAX + 10)
    assert len(both.kept) == 2 * FINDINGS_MAX
    assert joined_findings([gathered([]), gathered([])]) == Findings()
