"""A demo whose verifier cannot start or dies: what the demo says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chainctl.event_loop import run_async
from chainctl.main import main
from demo.processes import CheckingJob, Child, ChildDied, ContinueCommand
from orderchain.text import not_installed
from tests.deadlines import in_time

if TYPE_CHECKING:
    from pathlib import Path

JOB = CheckingJob(database="", chain_id=1, journal="", is_long=False)


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that says why, and ends."""
    (tmp_path / "dying.py").write_text("raise SystemExit('there is no Spark')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "dying"


def test_demo_without_spark_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("demo.spark_check.find_spec", lambda _: None)
    assert main(["demo", "--stack-dir", str(tmp_path / "stack")]) == 2
    assert capsys.readouterr().err == f"chainctl: {not_installed('pyspark', 'spark')}\n"
    assert not (tmp_path / "stack").exists()


def test_command_to_a_process_that_has_died_leaves_the_word_to_its_death(dying: str) -> None:
    async def command_and_ask() -> None:
        child = await Child.start("verifier", dying, JOB)
        try:
            with pytest.raises(ChildDied):
                await child.report()
            await child.send(ContinueCommand())
            with pytest.raises(ChildDied, match=r"the verifier ended .*there is no Spark"):
                await child.report()
        finally:
            await child.stop()

    run_async(in_time(command_and_ask()))
