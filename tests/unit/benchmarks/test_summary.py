from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from benchmarks.load import Line, Scope
from benchmarks.questions import NAMES, question_of
from benchmarks.report import TABLE, rounds_against_best, write_report
from benchmarks.session import CONDITIONS, ArmLog, Conditions, expected_seconds, steps
from benchmarks.spreads import Lines, Spread, histogram_of

if TYPE_CHECKING:
    from pathlib import Path


def line(arm: str, repeat: int, question: str = "comparison", **figures: object) -> Line:
    return Line(
        question=question, arm=arm, repeat=repeat, run="r", engine="e", figures=figures or None
    )


def rates(arm: str, *values: float) -> list[Line]:
    return [line(arm, n, delivered_per_second=value) for n, value in enumerate(values)]


def test_ratio_of_two_arms_is_taken_within_each_round() -> None:
    # The machine was twice as fast in the second round; the ratio was not.
    lines = Lines(rates("engine 100", 80, 160, 90) + rates("bare_pipe 100", 100, 200, 100))
    assert lines.ratio("engine 100", "bare_pipe 100", "delivered_per_second") == Spread(
        0.8, 0.8, 0.9, 3
    )


def test_ratio_with_a_round_that_lacks_one_of_the_two_leaves_it_out() -> None:
    lines = Lines(
        [*rates("engine 100", 80, 160), line("bare_pipe 100", 1, delivered_per_second=200.0)]
    )
    assert lines.ratio("engine 100", "bare_pipe 100", "delivered_per_second") == Spread(
        0.8, 0.8, 0.8, 1
    )


def test_figures_of_a_run_that_failed_are_in_no_median() -> None:
    failed = Line(
        question="comparison", arm="engine 100", repeat=1, run="r", engine="e", failure="lost one"
    )
    lines = Lines([*rates("engine 100", 80), failed])
    assert lines.spread("engine 100", "delivered_per_second") == Spread(80, 80, 80, 1)
    assert lines.failed == [failed]


def test_self_clocking_is_held_against_the_best_fixed_size_of_its_own_round() -> None:
    def took(arm: str, *milliseconds: int) -> list[Line]:
        return [
            line(arm, n, "open_load", histogram=histogram_of([value * 1_000_000]))
            for n, value in enumerate(milliseconds)
        ]

    lines = Lines(
        took("10 %, self-clocking", 30, 20, 300)
        + took("10 %, batches of 500", 20, 80)
        + took("10 %, batches of 5000", 60, 40)
    )
    found = rounds_against_best(lines, 10)
    assert found is not None
    assert found.count == 2  # nothing ran beside the third
    assert (found.low, found.high) == pytest.approx((0.5, 1.5), rel=0.01)
    assert rounds_against_best(lines, 30) is None


@pytest.mark.parametrize("scope", [Scope(), Scope(is_quick=True, repeats=1), Scope(is_huge=True)])
@pytest.mark.parametrize("name", NAMES)
def test_arms_of_a_question_have_names_of_their_own_and_expect_to_take_time(
    name: str, scope: Scope
) -> None:
    arms = question_of(name).arms(scope)
    assert arms
    assert len({arm.name for arm in arms}) == len(arms)
    assert all(arm.seconds > 0 for arm in arms)
    for arm in arms:
        if arm.load is not None:
            assert arm.load.all_orders % arm.load.batch_rows == 0, arm


def test_steps_run_every_arm_before_any_is_repeated() -> None:
    arms = question_of("keys").arms(Scope())
    found = list(steps("keys", arms, 3))
    assert [step.arm.name for step in found[: len(arms)]] == [arm.name for arm in arms]
    assert {step.repeat for step in found[: len(arms)]} == {0}
    assert len(found) == 3 * len(arms)


def test_quick_run_takes_three_minutes_or_less() -> None:
    from benchmarks.questions import QUICK

    scope = Scope(is_quick=True, repeats=1)
    plan = [step for name in QUICK for step in steps(name, question_of(name).arms(scope), 1)]
    assert expected_seconds(plan, scope) <= 180


@pytest.mark.nightly  # it draws every figure
def test_report_of_lines_of_every_question_is_a_table_and_figures(tmp_path: Path) -> None:
    for name in NAMES:
        log = ArmLog(tmp_path, name)
        for arm in question_of(name).arms(Scope()):
            for repeat in range(2):
                log.add(line(arm.name, repeat, name, **every_figure(1_000.0 + repeat)))
    written = write_report(tmp_path)
    text = (tmp_path / TABLE).read_text(encoding="utf-8")
    assert {path.suffix for path in written} == {".md", ".svg"}
    assert "comparison.svg" in {path.name for path in written}
    assert all(path.stat().st_size > 1_000 for path in written)
    for name in NAMES:
        assert f"## {question_of(name).title}" in text
    assert "half load / (commit p99 + send p99 + time of a batch): -" not in text


def test_report_of_the_same_lines_is_the_same_bytes(tmp_path: Path) -> None:
    log = ArmLog(tmp_path, "comparison")
    log.add(line("engine 100", 0, **every_figure(5.0)))
    first = {path: path.read_bytes() for path in write_report(tmp_path)}
    assert {path: path.read_bytes() for path in write_report(tmp_path)} == first


def test_report_of_runs_without_a_figure_names_them(tmp_path: Path) -> None:
    log = ArmLog(tmp_path, "comparison")
    log.add(
        Line(question="comparison", arm="engine 100", repeat=2, run="r", engine="e",
             failure="row 7 follows 5")
    )  # fmt: skip
    write_report(tmp_path)
    text = (tmp_path / TABLE).read_text(encoding="utf-8")
    assert "**No figure**: engine 100, repeat 3: row 7 follows 5" in text


@pytest.mark.parametrize("kernels", [("6.1", "6.1"), ("6.1", "6.2")])
def test_report_says_when_runs_were_on_several_machines(
    tmp_path: Path, kernels: tuple[str, str]
) -> None:
    log = ArmLog(tmp_path, "comparison")
    noted = []
    for repeat, kernel in enumerate(kernels):
        run = f"run {repeat}"
        found = line("engine 100", repeat, **every_figure(5.0))
        log.add(msgspec.structs.replace(found, run=run))
        host = {"processor": "p", "cores": 2, "memory_gib": 24, "kernel": kernel, "commit": "c"}
        host |= {"python": "3.11", "libraries": {}}
        noted.append(
            Conditions(run=run, host=host, engine="e", postgres={}, disk={})
        )  # fmt: skip
    (tmp_path / CONDITIONS).write_bytes(b"\n".join(map(msgspec.json.encode, noted)) + b"\n")
    write_report(tmp_path)
    text = (tmp_path / TABLE).read_text(encoding="utf-8")
    assert ("several engines or machines" in text) == (len(set(kernels)) == 2)


def every_figure(value: float) -> dict[str, Any]:
    names = (
        "delivered_per_second", "published_per_second", "persisted_per_second", "orders",
        "rows_per_second", "rate_to_select", "check_seconds", "wal_mib", "batch_window_ms",
        "producer_memory_mib", "receiver_memory_mib", "producer_cpu_seconds",
        "receiver_cpu_seconds", "postgres_cpu_seconds", "kafka_cpu_seconds",
    )  # fmt: skip
    histogram = histogram_of([int(value * 1_000), 2_000_000])
    texts = (
        "histogram", "ack_histogram", "commit_histogram", "send_histogram",
        "due_commit_histogram", "due_send_histogram",
    )  # fmt: skip
    return dict.fromkeys(names, value) | dict.fromkeys(texts, histogram)
