"""How many CPU seconds do a million orders cost, and whose are they?

The engine's own share is that of its two processes; the rest is the servers'.
"""

from __future__ import annotations

from benchmarks.question import Arm, Scope, load_arm
from benchmarks.running import run_arm

TITLE = "CPU seconds per million orders, by process"

BATCH_ROWS = (100, 1_000, 5_000)
PROCESSES = ("producer", "receiver", "postgres", "kafka")


def arms(scope: Scope) -> list[Arm]:
    """Return the engine and both bare pipes at each size, with twice the orders of a comparison."""
    return [
        load_arm(scope, rival, rows, orders=2 * scope.orders(rows))
        for rows in BATCH_ROWS
        for rival in ("bare_pages", "bare_pipe", "engine")
    ]


run = run_arm
