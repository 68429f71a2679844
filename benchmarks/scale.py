"""Does a long chain cost more than a short one: rate and resident memory, from 10^5 rows to 10^7?

A chain is grown to its length, end to end, by orders that are made as they are sent; then the rate
of the next orders is measured. Memory is the most that was resident when the chain had its length.
"""

from __future__ import annotations

from benchmarks.question import RUN_SECONDS, Arm, Scope, load_arm
from benchmarks.running import run_arm

TITLE = "Rate and memory from 10^5 rows to 10^7"

LENGTHS = (100_000, 1_000_000, 10_000_000)
HUGE = 100_000_000
_ROWS_PER_SECOND = 70_000
_PROVEN_PER_SECOND = 250_000


def arms(scope: Scope) -> list[Arm]:
    """Return the lengths, at a batch of 1,000."""
    lengths = (*LENGTHS, HUGE) if scope.is_huge else LENGTHS
    return [_arm(scope, rows) for rows in (lengths[:1] if scope.is_quick else lengths)]


def _arm(scope: Scope, rows: int) -> Arm:
    arm = load_arm(scope, "engine", 1_000, name=f"{rows} rows", grow_orders=rows)
    if arm.load is None:
        raise ValueError(arm.name)
    seconds = arm.load.all_orders * (1 / _ROWS_PER_SECOND + 1 / _PROVEN_PER_SECOND)
    return Arm(
        name=arm.name,
        load=arm.load,
        seconds=RUN_SECONDS + seconds,
        repeats_max=1 if rows == HUGE else arm.repeats_max,
    )


run = run_arm
