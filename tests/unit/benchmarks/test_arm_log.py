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


def test_lines_are_saved_one_by_one_and_the_next_run_begins_anew(tmp_path: Path) -> None:
    log = ArmLog(tmp_path, "q")
    for saved in (line("a", 0), line("b", 0, figures=None, failure="lost an order"), line("a", 1)):
        log.add(saved)
    assert read_lines(log.path) == log.lines
    log.path.write_bytes(log.path.read_bytes()[:-20])  # a crash cut the last one
    assert read_lines(log.path) == log.lines[:2]
    assert read_lines(ArmLog(tmp_path, "q").path) == []


def test_fingerprint_of_the_engine_is_the_same_twice() -> None:
    assert engine_fingerprint() == engine_fingerprint()
    assert len(engine_fingerprint()) == 12


@pytest.mark.parametrize("text", [b"", b"\n\n", b"{\n", b'{"question": "q"}\n'])
def test_lines_of_a_file_that_holds_none_are_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(text)
    assert read_lines(path) == []
