from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import Struct

from chain_kernel.errors import OrderchainError
from chain_kernel.text import not_installed
from chainctl.main import main
from orderchain_demo.programs import Program

if TYPE_CHECKING:
    from pathlib import Path


class Word(Struct):
    text: str


@pytest.mark.parametrize(
    ("source", "ended"),
    [
        ("raise SystemExit('there is no Spark')", "status 1: there is no Spark"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9: no word"),
    ],
)
def test_program_that_dies_says_why_at_the_next_read(
    source: str, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Program("verifier", "dying", Word("job")) as program:
        with pytest.raises(OrderchainError, match=f"the verifier ended with {ended}"):
            program.read(Word)
        program.write(Word("too late"))


def test_program_gets_its_job_reports_and_ends_with_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "echo.py").write_text(
        "import sys, time\nprint(input(), flush=True)\ntime.sleep(99)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Program("echo", "echo", Word("job")) as program:
        assert program.read(Word) == Word("job")


def test_demo_without_spark_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orderchain_demo.verify.find_spec", lambda _: None)
    assert main(["demo", "--stack-dir", str(tmp_path / "stack")]) == 2
    said = f"chainctl: {not_installed('pyspark', 'spark')}; --no-spark does without\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "stack").exists()
