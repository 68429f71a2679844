from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from chainctl import main as chainctl_main
from orderchain_demo import DemoOptions
from orderchain_demo import run as demo_run
from orderchain_demo.lossy_link import LinkCounters
from orderchain_demo.preparation import DemoInput, ExpectedState
from orderchain_demo.processes import (
    MatchingFinished,
    MatchingProgress,
    MatchingResumed,
    ReceiverCounters,
)
from orderchain_demo.scenario import ChainSetup, Plan, ScenarioOutcome, ServiceLife
from orderchain_demo.sequencing import Sequenced
from orderchain_demo.summary import Summary, summarize, summary_rows

ROWS = 1_000

OPTIONS = DemoOptions(input=None, orders=ROWS, loss=0.1, duplicate=0.1, reorder=0.1, seed=4)
STRAIGHT = ExpectedState(
    rows=ROWS, last_key="orders.csv#1000", counters={"events": ROWS}, digest="d" * 64,
)  # fmt: skip
SETUP = ChainSetup(
    chain_id=3, topic="t", kafka="k", sequencer_database="", receiver_database="",
    gap_database="", audit_database="",
)  # fmt: skip
SEQUENCED = Sequenced(rows=ROWS, first_id=1, last_id=ROWS, frames=100, seconds=0.5)
SPARK: dict[str, Any] = {
    "is_clean": True,
    "sources": [
        {"source": "database", "verdict": "complete", "rows": ROWS, "counts": {}},
        {"source": "journal:j", "verdict": "complete", "rows": ROWS, "counts": {}},
    ],
    "comparisons": [
        {"source": "journal:j", "against": "database", "is_equal": True, "row_counts": {}}
    ],
}


def sources(**amiss: object) -> dict[str, object]:
    return {"sources": [SPARK["sources"][0], SPARK["sources"][1] | amiss]}


def plan(rows: int = ROWS) -> Plan:
    expected = msgspec.structs.replace(STRAIGHT, rows=rows)
    return Plan(
        setup=SETUP,
        demo_input=DemoInput(path=Path("orders.csv"), expected=expected),
        faults=OPTIONS.faults(),
        journal=Path("journal.jsonl"),
    )


def delivered(events: int, rows: int, seconds: float = 1.0) -> MatchingProgress:
    return MatchingProgress(
        head=events, rows=rows, events=events, seconds=seconds, saves=2,
        receiver=ReceiverCounters(gaps=3, rows_filled=30),
        link=LinkCounters(frames=50, dropped=5, last_dropped=1),
    )  # fmt: skip


def summary(
    *, digest: str = STRAIGHT.digest, events: int = ROWS, payloads: int = ROWS,
    spark: dict[str, object] | None = None,
) -> Summary:  # fmt: skip
    last = delivered(events, ROWS - 300)
    outcome = ScenarioOutcome(
        sequenced=SEQUENCED,
        lives=[
            ServiceLife(
                resumed=MatchingResumed(head=0, journal_rows_cut=0), delivered=delivered(350, 350)
            ),
            ServiceLife(resumed=MatchingResumed(head=300, journal_rows_cut=50), delivered=last),
        ],
        finished=MatchingFinished(
            delivered=last,
            last_gap_shown_by="heartbeat",
            counters={"events": payloads},
            digest=digest,
        ),
    )
    report = SPARK | (spark or {})
    return summarize(
        plan(), OPTIONS, outcome, report, commands={}, phases={"orders": 4.0, "Spark": 5.0}
    )


def test_summary_with_all_equal_is_whole_and_adds_up_both_lives() -> None:
    shown = summary()
    assert shown.whole
    assert shown.seconds == 9
    assert shown.restarts == 1
    assert shown.rows_delivered == ROWS + 50
    assert shown.journal_rows_cut == 50
    assert shown.receiver.gaps == 6
    assert shown.link.dropped == 10
    assert shown.sequenced_per_second == 2 * ROWS
    assert shown.delivered_per_second == (ROWS + 50) / 2


@pytest.mark.parametrize(
    ("wrong", "objections"),
    [
        ({"digest": "e" * 64}, [f"state: {'e' * 64}, straight from the input {'d' * 64}"]),
        ({"events": ROWS - 1}, ["rows delivered: 999, straight from the input 1000"]),
        ({"payloads": ROWS - 1}, ["events: 999, straight from the input 1000"]),
        ({"spark": {"is_clean": False}}, ["the verifier's report is not clean"]),
        (
            {"spark": {"sources": SPARK["sources"][:1]}},
            ["1 sources and 1 comparisons verified, due were 2 and 1"],
        ),
        (
            {"spark": sources(verdict="contiguous (head not known)")},
            ["journal:j: 1000 rows, contiguous (head not known); 1000 in the input"],
        ),
        (
            {"spark": sources(rows=ROWS - 1, counts={"gap": 1})},
            ["journal:j: 999 rows, complete (1 gap); 1000 in the input"],
        ),
        (
            {"spark": {"comparisons": [SPARK["comparisons"][0] | {"is_equal": False}]}},
            ["journal:j and database differ"],
        ),
        (
            {"spark": {"comparisons": []}},
            ["2 sources and 0 comparisons verified, due were 2 and 1"],
        ),
    ],
)
def test_summary_with_anything_amiss_is_not_whole_and_says_what(
    wrong: dict[str, Any], objections: list[str]
) -> None:
    shown = summary(**wrong)
    assert not shown.whole
    assert shown.not_whole == objections
    assert dict(summary_rows(shown))["verdict"] == "NOT WHOLE"


def test_summary_rows_say_how_the_last_frame_fared() -> None:
    rows = dict(summary_rows(summary()))
    assert "heartbeat" in rows["the last frame"]
    assert rows["verdict"] == "WHOLE"


@pytest.mark.parametrize(("digest", "code"), [(STRAIGHT.digest, 0), ("e" * 64, 1)])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_command_ends_with_the_exit_code_of_the_verdict(
    digest: str,
    code: int,
    form: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo_run, "run_demo", lambda *_: summary(digest=digest))
    assert chainctl_main.main(["demo", *form]) == code
    assert capsys.readouterr().err.count("Not whole: state: ") == code


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 399, 400, 20_000, 258_975, 10_000_000])
def test_plan_of_any_size_kills_before_the_pause_and_saves_before_the_kill(rows: int) -> None:
    some = plan(rows)
    assert 1 <= some.kill_at_row <= some.pause_at_row <= rows
    assert some.save_rows >= 1
    if rows >= 20_000:
        assert some.save_rows < some.kill_at_row < some.pause_at_row
        assert some.kill_at_row % some.save_rows == some.save_rows // 2


@pytest.mark.parametrize("reorder", [0.0, 0.02, 0.9, 1.0])
def test_faults_of_any_reorder_share_stay_shares(reorder: float) -> None:
    faults = msgspec.structs.replace(OPTIONS, reorder=reorder).faults()
    assert faults.reorder == reorder
    assert 0 <= faults.delay <= 1 - reorder
    assert bool(faults.delay) == (0 < reorder < 1)
