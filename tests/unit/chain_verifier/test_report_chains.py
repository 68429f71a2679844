"""Several chains in one report: the outcome of each, and how many are what."""

import json

from msgspec.structs import replace

from chain_kernel.errors import ChainMissing, SourceBroken
from chain_verifier.config import JournalSource, VerifyRequest
from chain_verifier.findings import Finding, Kind
from chain_verifier.report import (
    ChainsReport,
    Report,
    SourceReport,
    Unverified,
    Verdict,
    outcomes_of,
)


def report_of(chain_id: int, *findings: Finding) -> Report:
    verdict = Verdict.BROKEN if findings else Verdict.COMPLETE
    counts = {"gap": len(findings)} if findings else {}
    source = SourceReport(
        source="database", verdict=verdict, rows=5, first_id=1, last_id=9, counts=counts,
        row_counts=counts, notes=(), seconds=0.5,
    )  # fmt: skip
    return Report(
        chain_id=chain_id, verdict=verdict, start=0, head=9, sources=(source,), comparisons=(),
        counts=counts, row_counts=counts, findings=findings, spark_start_seconds=0, seconds=1.0,
    )  # fmt: skip


GAP = Finding(kind=Kind.GAP, source="database", after_id=2, until_id=3)
CLEAN, BROKEN = report_of(1), report_of(2, GAP)
GONE = Unverified(chain_id=3, is_refused=False, reason="database: could not be read to its end")
ALL = ChainsReport(outcomes=(CLEAN, BROKEN, GONE), spark_start_seconds=2.0, seconds=5.0)


def test_chains_are_clean_only_if_each_was_read_to_its_end_without_a_finding() -> None:
    assert not ALL.is_clean
    for outcome, is_clean in ((CLEAN, True), (BROKEN, False), (GONE, False)):
        report = ChainsReport(outcomes=(CLEAN, outcome), spark_start_seconds=0, seconds=1.0)
        assert report.is_clean is is_clean


def test_chains_are_reported_one_by_one_and_counted_at_the_end() -> None:
    lines = ALL.lines()
    assert [line for line in lines if line.startswith("chain ")] == [
        "chain 1: complete (start 0, head 9), keys not compared",
        "chain 2: broken (start 0, head 9), keys not compared",
        "chain 3: not verified: database: could not be read to its end",
    ]
    assert lines[-1] == (
        "3 chains: 1 clean, 1 with findings, 1 not verified; 5.0 s, 2.0 s of it to start Spark"
    )


def test_chain_of_which_nothing_was_read_is_neither_clean_nor_found_broken() -> None:
    empty = replace(CLEAN, verdict=Verdict.UNPROVEN, head=None)
    report = ChainsReport(outcomes=(CLEAN, empty), spark_start_seconds=0, seconds=1.0)
    assert not report.is_clean
    assert report.lines()[-1] == "2 chains: 1 clean, 0 with findings, 1 not verified; 1.0 s"
    assert [one["is_clean"] for one in json.loads(report.to_json())["chains"]] == [True, False]


def test_chains_as_json_hold_each_chain_as_it_would_be_alone() -> None:
    found = json.loads(ALL.to_json())
    assert found["is_clean"] is False
    assert [one["verdict"] for one in found["chains"]] == ["complete", "broken", "not verified"]
    assert found["chains"][0] == json.loads(CLEAN.to_json())
    assert found["chains"][2]["reason"] == GONE.reason


def test_a_chain_that_cannot_be_verified_keeps_no_other_from_it() -> None:
    requests = [
        VerifyRequest(chain_id=chain_id, sources=(JournalSource(path="j"),))
        for chain_id in (1, 2, 4)
    ]

    def verify(request: VerifyRequest) -> Report:
        if request.chain_id == 2:
            raise ChainMissing(2)
        if request.chain_id == 4:
            raise SourceBroken("journal", "it became shorter")
        return report_of(request.chain_id)

    outcomes = outcomes_of([GONE, *requests], verify)
    assert [one.chain_id for one in outcomes] == [3, 1, 2, 4]
    kinds = [one.is_refused if isinstance(one, Unverified) else None for one in outcomes]
    assert kinds == [False, None, True, False]
