from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from chain_kernel.testing.memory_chain import LinkDial
from chainctl.main import main
from orderchain_demo.feed import DemoInput
from orderchain_demo.matching import MatchingReport
from orderchain_demo.scenario import ChainSetup, Outcome, Plan
from orderchain_demo.summary import Summary, summarize, summary_rows
from orderchain_demo.verify import Verified

ROWS = 1_000
PLAN = Plan(
    setup=ChainSetup(
        chain_id=3, topic="t", kafka="k", sequencer_database="", receiver_database="",
        gap_database="", audit_database="",
    ),
    orders=DemoInput(path=Path("orders.csv"), rows=ROWS, last_key="k", digest="d" * 64),
    journal=Path("journal.jsonl"),
    dial=LinkDial(),
    seed=4,
)  # fmt: skip
FINISHED = MatchingReport(
    is_live=True, events=ROWS, rows=700, seconds=0.5, saves=2, journal_rows_cut=50,
    link={"frames": 50, "dropped": 5, "last_dropped": 1, "repeated": 1, "reordered": 1},
    receiver={"gaps": 3, "rows_filled": 30, "rows_caught_up": 0, "frames_duplicate": 1},
    last_gap_shown_by="heartbeat", digest="d" * 64,
)  # fmt: skip
OUTCOME = Outcome(rows=ROWS, frames=100, seconds=0.5, lives=[FINISHED])
REPORT: dict[str, Any] = {
    "is_clean": True,
    "sources": [
        {"source": "database", "verdict": "complete", "rows": ROWS},
        {"source": "journal:j", "verdict": "complete", "rows": ROWS},
    ],
    "comparisons": [{"source": "journal:j", "against": "database", "is_equal": True}],
}


def summary(outcome: Outcome = OUTCOME, **report: object) -> Summary:
    phases = {"orders": 4.0, "Spark": 5.0}
    verdict = Verified(REPORT | report)
    return summarize(PLAN, outcome, verdict, "Spark", commands={}, phases=phases)


def with_digest(digest: str) -> Summary:
    return summary(replace(OUTCOME, lives=[replace(FINISHED, digest=digest)]))


@pytest.mark.parametrize(
    ("found", "objection"),
    [
        (with_digest("e" * 64), f"state: {'e' * 64}, straight from the input {'d' * 64}"),
        (summary(replace(OUTCOME, rows=999)), "999 rows sequenced, 1000 in the input"),
        (summary(is_clean=False), "the verifier found faults: verify --demo names them"),
        (summary(sources=REPORT["sources"] * 2), "4 sources and 1 comparisons, due were 2 and 1"),
        (summary(comparisons=[]), "2 sources and 0 comparisons, due were 2 and 1"),
        (
            summary(sources=[REPORT["sources"][0], REPORT["sources"][1] | {"rows": 999}]),
            "journal:j: 999 rows, complete; 1000 in the input",
        ),
    ],
)
def test_summary_with_anything_amiss_is_not_whole_and_says_what(
    found: Summary, objection: str
) -> None:
    assert not found.whole
    assert found.not_whole == [objection]
    assert dict(summary_rows(found))["verdict"] == "NOT WHOLE"


def test_first_order_on_which_a_second_version_differs_is_named() -> None:
    first = [{"group": "ALPHA", "id": 17}, {"group": "BRAVO", "id": 30}]
    found = summarize(
        PLAN, OUTCOME, Verified(REPORT, [], first), "Spark", commands={}, phases={"orders": 4.0}
    )
    shown = dict(summary_rows(found))["a second version of them"]
    assert shown == "without orders above 4,000: differs from id 17 on, an order of ALPHA"
    assert (found.whole, found.second_version) == (True, first)


@pytest.mark.parametrize(("digest", "code"), [("d" * 64, 0), ("e" * 64, 1)])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_command_ends_with_the_exit_code_of_the_verdict(
    digest: str,
    code: int,
    form: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("orderchain_demo.run.run_demo", lambda *_: with_digest(digest))
    assert main(["demo", *form]) == code
    assert capsys.readouterr().err.count("Not whole: state: ") == code


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 399, 400, 20_000, 258_975, 10_000_000])
def test_plan_of_any_size_kills_before_the_pause_and_between_two_saves(rows: int) -> None:
    plan = replace(PLAN, orders=replace(PLAN.orders, rows=rows))
    before_pause = max(1, rows // 2) // plan.batch_rows * plan.batch_rows
    assert 1 <= plan.kill_at_row <= before_pause
    if rows >= 20_000:
        assert plan.save_rows < plan.kill_at_row
        assert plan.kill_at_row % plan.save_rows == plan.save_rows // 2
