"""Which event loop a test runs on: `chainctl` takes uvloop's, an embedder may have Python's own."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import uvloop

_ON_UVLOOP: Final = (
    "contract",
    "integration/gapfill",
    "integration/matcher_receiver",
    "integration/sequencer",
)
"""Below `tests`: the parts of the engine over real servers."""

_ON_BOTH: Final = (
    "integration/sequencer/stores/test_shared_line.py",
    "unit/sequencer/test_submission_batcher.py",
)
"""What sets timers, and what writes to a lost connection: the loops have rules of their own."""

_LOOPS: Final = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
_TESTS: Final = Path(__file__).parent


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    path = item.path.relative_to(_TESTS).as_posix()
    if path.startswith(_ON_BOTH):
        return _LOOPS
    name = "uvloop" if path.startswith(_ON_UVLOOP) else "asyncio"
    return {name: _LOOPS[name]}
