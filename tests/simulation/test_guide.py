"""The guide's example does what it says."""

import logging
from pathlib import Path

import pytest

pytestmark = pytest.mark.simulation

GUIDE = Path(__file__).parents[2] / "docs" / "simulation.md"


@pytest.mark.nightly
def test_example_of_the_guide_runs_as_it_stands(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    example = GUIDE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(example, str(GUIDE), "exec"), {"__name__": "guide"})  # noqa: S102 - our own
