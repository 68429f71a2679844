from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.load import Line
from benchmarks.session import ArmLog, engine_fingerprint, read_lines

if TYPE_CHECKING:
    from pathlib import Path


def line(arm: str, repeat: int, **fields: object) -> Line:
    settled = {"engine": "one", "figures": {"orders": 1.0}, **fields}
    return Line(question="q", arm=arm, repeat=repeat, run="r", **settled)  # type: ignore[arg-type]


def saved(folder: Path, *lines: Line) -> ArmLog:
    log = ArmLog(folder, "q")
    log.begin(resumes=False, engine="one")
    for one in lines:
        log.add(one)
    return log


def test_log_that_is_resumed_has_what_was_saved(tmp_path: Path) -> None:
    saved(tmp_path, line("a", 0), line("b", 0))
    log = ArmLog(tmp_path, "q")
    assert log.begin(resumes=True, engine="one") == 0
    assert log.has("a", 0)
    assert log.has("b", 0)
    assert not log.has("a", 1)
    log.add(line("a", 1))
    assert [(one.arm, one.repeat) for one in read_lines(log.path)] == [("a", 0), ("b", 0), ("a", 1)]


def test_log_that_is_not_resumed_begins_anew(tmp_path: Path) -> None:
    saved(tmp_path, line("a", 0))
    log = ArmLog(tmp_path, "q")
    log.begin(resumes=False, engine="one")
    assert not log.has("a", 0)
    assert read_lines(log.path) == []


def test_log_with_a_last_line_that_was_cut_off_keeps_the_others(tmp_path: Path) -> None:
    log = saved(tmp_path, line("a", 0), line("a", 1))
    log.path.write_bytes(log.path.read_bytes()[:-20])
    again = ArmLog(tmp_path, "q")
    again.begin(resumes=True, engine="one")
    assert again.has("a", 0)
    assert not again.has("a", 1)
    again.add(line("a", 1))
    assert len(read_lines(log.path)) == 2


def test_log_of_another_engine_is_measured_again_as_a_whole(tmp_path: Path) -> None:
    saved(tmp_path, line("a", 0), line("b", 0, engine="another"))
    log = ArmLog(tmp_path, "q")
    assert log.begin(resumes=True, engine="one") == 2
    assert not log.has("a", 0)


def test_log_of_arms_that_are_set_otherwise_now_leaves_them_out(tmp_path: Path) -> None:
    quick = {"orders": 10}
    log = saved(tmp_path, line("a", 0, settings=quick), line("b", 0, settings={"orders": 99}))
    settings = {"a": {"orders": 40}, "b": {"orders": 99}}
    assert log.begin(resumes=True, engine="one", settings=settings) == 1
    assert [one.arm for one in read_lines(log.path)] == ["b"]
    assert not log.has("a", 0)
    assert log.has("b", 0)


def test_log_with_a_run_without_a_figure_runs_it_again(tmp_path: Path) -> None:
    saved(tmp_path, line("a", 0), line("b", 0, figures=None, failure="lost an order"))
    log = ArmLog(tmp_path, "q")
    log.begin(resumes=True, engine="one")
    assert log.has("a", 0)
    assert not log.has("b", 0)


def test_log_with_an_arm_that_cannot_run_here_skips_every_repeat(tmp_path: Path) -> None:
    log = saved(tmp_path, line("a", 0, figures=None, skipped="no program"))
    assert log.has("a", 0)
    assert log.has("a", 4)


def test_fingerprint_of_the_engine_is_the_same_twice() -> None:
    assert engine_fingerprint() == engine_fingerprint()
    assert len(engine_fingerprint()) == 12


@pytest.mark.parametrize("text", [b"", b"\n\n", b"{\n", b'{"question": "q"}\n'])
def test_lines_of_a_file_that_holds_none_are_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(text)
    assert read_lines(path) == []
