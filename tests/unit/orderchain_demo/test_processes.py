"""A demo whose verifier cannot start or dies: what the demo says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chain_kernel.text import not_installed
from chainctl.event_loop import run_async
from chainctl.main import main
from orderchain_demo.processes import CheckingJob, Child, ChildDied, VerifyCommand
from tests.deadlines import in_time

if TYPE_CHECKING:
    from pathlib import Path

JOB = CheckingJob(is_long=False)
VERIFY = VerifyCommand(database="", chain_id=1, journal="")


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that says why, and ends."""
    (tmp_path / "dying.py").write_text("raise SystemExit('there is no Spark')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "dying"


def test_demo_without_spark_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orderchain_demo.spark_check.find_spec", lambda _: None)
    assert main(["demo", "--stack-dir", str(tmp_path / "stack")]) == 2
    said = f"chainctl: {not_installed('pyspark', 'spark')}; --no-spark does without\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "stack").exists()


def test_command_to_a_process_that_has_died_leaves_the_word_to_its_death(dying: str) -> None:
    async def command_and_ask() -> None:
        child = await Child.start("verifier", dying, JOB)
        try:
            with pytest.raises(ChildDied):
                await child.report()
            await child.send(VERIFY)
            with pytest.raises(ChildDied, match=r"the verifier ended .*there is no Spark"):
                await child.report()
        finally:
            await child.stop()

    run_async(in_time(command_and_ask()))
