from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.load import Line, Scope
from benchmarks.questions import NAMES, question_of
from benchmarks.report import TABLE, write_report
from benchmarks.session import CONDITIONS, Conditions, read_lines, save, saved_in, steps
from benchmarks.spreads import Lines, Spread, histogram_of


def line(arm: str, repeat: int, question: str = "comparison", **figures: object) -> Line:
    return Line(question=question, arm=arm, repeat=repeat, run="r", figures=figures or None)


def rates(arm: str, *values: float) -> list[Line]:
    return [line(arm, n, delivered_per_second=value) for n, value in enumerate(values)]


@pytest.mark.parametrize(
    ("engine", "rounds", "ratio"),
    [
        # The machine was twice as fast in the second round; the ratio was not.
        ([80, 160, 90], {0: 100, 1: 200, 2: 100}, Spread(0.8, 0.8, 0.9, 3)),
        ([80, 160], {1: 200}, Spread(0.8, 0.8, 0.8, 1)),
    ],
)
def test_ratio_of_two_arms_is_taken_within_each_round_that_has_both(
    engine: list[float], rounds: dict[int, float], ratio: Spread
) -> None:
    pipe = [line("bare_pipe 100", n, delivered_per_second=rate) for n, rate in rounds.items()]
    lines = Lines([*rates("engine 100", *engine), *pipe])
    assert lines.ratio("engine 100", "bare_pipe 100", "delivered_per_second") == ratio


FAILED = Line(question="comparison", arm="engine 100", repeat=2, run="r", failure="row 7 follows 5")


def test_figures_of_a_run_that_failed_are_in_no_median() -> None:
    lines = Lines([*rates("engine 100", 80), FAILED])
    assert lines.spread("engine 100", "delivered_per_second") == Spread(80, 80, 80, 1)
    assert lines.failed == [FAILED]


def test_table_compares_the_engine_at_its_defaults_and_names_the_other_kinds(
    tmp_path: Path,
) -> None:
    for arm, rate in {
        "engine 1000": 50.0, "engine 1000 keys not compared": 75.0, "bare_pages 1000": 100.0,
        "engine 1000 in Python": 25.0, "engine 1000 in Python, keys not compared": 40.0,
    }.items():  # fmt: skip
        figures = {**every_figure(1.0), "delivered_per_second": rate}
        save(tmp_path, line(arm, 0, **figures))
    write_report(tmp_path)
    text = (tmp_path / TABLE).read_text(encoding="utf-8")
    assert "|bare pages 1000|100|0.50|0.75|0.25|0.40|" in text
    assert "|engine 1000|50.0|||||" in text
    assert "|engine 1000 in Python, keys not compared|40.0|||||" in text


@pytest.mark.parametrize("scope", [Scope(), Scope(is_quick=True, repeats=1)])
@pytest.mark.parametrize("name", NAMES)
def test_steps_run_every_arm_before_any_is_repeated(name: str, scope: Scope) -> None:
    arms = question_of(name).arms(scope)
    assert len({arm.name for arm in arms}) == len(arms)
    for arm in arms:
        assert arm.load is None or arm.load.all_orders % arm.load.batch_rows == 0, arm
    found = steps(name, scope)
    assert [(step.arm, step.repeat) for step in found[: len(arms)]] == [(arm, 0) for arm in arms]
    assert {step.repeat for step in found} <= set(range(scope.repeats))


def test_lines_are_saved_one_by_one_and_what_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    saved = [line("a", 0, orders=1.0), line("b", 0), line("a", 1, orders=2.0)]
    for each in saved:
        save(tmp_path, each)
    path = saved_in(tmp_path, "comparison")
    assert read_lines(path) == saved
    path.write_bytes(path.read_bytes()[:-20])
    assert read_lines(path) == saved[:2]
    path.write_bytes(b'{\n\n{"question": "q"}\n')
    assert read_lines(path) == []


@pytest.mark.nightly  # it draws every figure
def test_report_of_lines_of_every_question_is_a_table_and_figures(tmp_path: Path) -> None:
    for name in NAMES:
        for arm in question_of(name).arms(Scope()):
            for repeat in range(2):
                save(tmp_path, line(arm.name, repeat, name, **every_figure(1_000.0 + repeat)))
    written = write_report(tmp_path)
    text = (tmp_path / TABLE).read_text(encoding="utf-8")
    assert {path.suffix for path in written} == {".md", ".svg"}
    assert "comparison.svg" in {path.name for path in written}
    assert all(path.stat().st_size > 1_000 for path in written)
    for name in NAMES:
        assert f"## {question_of(name).title}" in text
    assert "|10,000/s, engine, one by one|1.00|2.00|" in text


def test_report_of_the_same_lines_is_the_same_bytes_and_names_what_has_no_figure(
    tmp_path: Path,
) -> None:
    save(tmp_path, line("engine 100", 0, **every_figure(5.0)))
    save(tmp_path, FAILED)
    host = {"processor": "p", "cores": 2, "memory_gib": 24, "kernel": "6.1", "commit": "c"}
    conditions = Conditions(run="r", host=host | {"python": "3", "libraries": {}}, postgres={})
    (tmp_path / CONDITIONS).write_bytes(msgspec.json.encode(conditions))
    first = {path: path.read_bytes() for path in write_report(tmp_path)}
    assert {path: path.read_bytes() for path in write_report(tmp_path)} == first
    text = (tmp_path / TABLE).read_text(encoding="utf-8")
    assert "**No figure**: engine 100, repeat 3: row 7 follows 5" in text
    assert "- commit c, r, 1 run(s)" in text


def every_figure(value: float) -> dict[str, Any]:
    names = (
        "delivered_per_second", "published_per_second", "persisted_per_second", "orders",
        "rows_per_second", "rate_to_select", "check_seconds", "wal_mib", "batch_rows", "stall_ms",
        "producer_ms_per_batch", "receiver_ms_per_batch", "accepted_per_second",
        "offered_per_second", "refused_share", "memory_growth_mib",
        "producer_memory_mib", "receiver_memory_mib", "producer_cpu_seconds",
        "receiver_cpu_seconds", "postgres_cpu_seconds", "kafka_cpu_seconds",
    )  # fmt: skip
    histogram = histogram_of([int(value * 1_000), 2_000_000])
    texts = (
        "histogram", "ack_histogram", "undisturbed_histogram", "flush_histogram",
        "commit_histogram", "send_histogram", "due_commit_histogram", "due_send_histogram",
        "accepted_histogram", "refused_histogram", "order_histogram", "flush_alone_histogram",
    )  # fmt: skip
    return dict.fromkeys(names, value) | dict.fromkeys(texts, histogram)
