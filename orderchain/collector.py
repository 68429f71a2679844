"""Python's garbage collector, set for a process that holds many orders for a short time."""

from __future__ import annotations

import gc
from typing import Final

_YOUNG_OBJECTS: Final = 50_000
_MIDDLE_PASSES: Final = 20
_OLD_PASSES: Final = 100


def calm_collector() -> None:
    """Let the collector pass rarely, and leave alone what was there at the start.

    Call it once at a process's start, after the imports. An order that is submitted alone makes a
    future and often a task, which are freed without the collector; at Python's own settings it
    passes over all of them again and again, and with 10,000 orders waiting that takes a third of
    the time. Cycles are still found, only later.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_PASSES, _OLD_PASSES)
