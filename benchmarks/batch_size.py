"""How does the size of a batch affect the rate of persisting, publishing, and end to end?

Persisting: no broker and no receiver load the machine. Publishing: the broker does, nobody reads.
End to end: a second process hands the orders on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.question import Arm, Scope, load_arm
from benchmarks.running import run_arm

if TYPE_CHECKING:
    from benchmarks.load import Stage

TITLE = "Batch size against the rate of persisting, publishing, and end to end"

BATCH_ROWS = (1, 10, 100, 1_000, 5_000)
STAGES: tuple[Stage, ...] = ("persist", "publish", "deliver")


def arms(scope: Scope) -> list[Arm]:
    """Return every size at every stage, through the engine and both bare pipes."""
    sizes = (100, 5_000) if scope.is_quick else BATCH_ROWS
    stages = STAGES[2:] if scope.is_quick else STAGES
    rivals = ("engine",) if scope.is_quick else ("bare_pages", "bare_pipe", "engine")
    return [
        load_arm(scope, rival, rows, name=f"{rival} {rows} {stage}", stage=stage)
        for rows in sizes
        for stage in stages
        for rival in rivals
    ]


run = run_arm
