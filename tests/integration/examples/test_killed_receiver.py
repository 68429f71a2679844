"""The example that kills the matching service: it passes as it is, and fails for a careless one."""

import shutil
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
CHECKPOINT = "            await receiver.checkpoint(run, connection=connection)\n"
OUTSIDE = "        await receiver.checkpoint(run)\n"
UNCHANGED: tuple[str, str] = ("", "")

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        (UNCHANGED, {"passed": 1}),
        ((CHECKPOINT, OUTSIDE), {"failed": 1}),
        ((CHECKPOINT, ""), {"failed": 1}),
    ],
    ids=["as it is", "checkpoint after the transaction", "no checkpoint"],
)
def test_matching_example_is_killed_at_each_await(
    pytester: pytest.Pytester, changed: tuple[str, str], outcome: dict[str, int]
) -> None:
    shutil.copy(EXAMPLES / "test_matching_service.py", pytester.path)
    program = (EXAMPLES / "matching_service.py").read_text(encoding="utf-8")
    assert changed[0] in program
    service = program.replace(*changed) if changed[0] else program
    (pytester.path / "matching_service.py").write_text(service, encoding="utf-8")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(**outcome)
