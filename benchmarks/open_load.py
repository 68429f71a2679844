"""How long does an order take under an open load: one that comes whether or not the last is done?

Orders fall due on a constant schedule. Latency counts from the time when an order was due, not from
when it was sent: a sequencer that stalls makes later orders late, and that is what is measured.
Every millisecond the orders that have fallen due are handed to the sequencer together, as an intake
would; the wait for that counts too. Self-clocking batches are compared with fixed batch sizes, each
of which is sent when it is full.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from benchmarks.ends import RunFailed
from benchmarks.load import Load
from benchmarks.open_load_ends import Floor, OpenJob, measure_floor, run_open
from benchmarks.question import Arm, Figures, Line, Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site

SHARES_PERCENT = (10, 30, 50, 70, 90)
FIXED_ROWS = (100, 500, 1_000, 5_000)
SECONDS = 4.0
WARM_UP_SECONDS = 1.0
MAXIMUM_ORDERS = 400_000
_OVERHEAD_SECONDS = 5.0
_MAXIMUM_SECONDS = 12.0


def arms(scope: Scope) -> list[Arm]:
    """Return the maximum, the floor, and every policy at every load."""
    shares = (50,) if scope.is_quick else SHARES_PERCENT
    sizes = (1_000,) if scope.is_quick else FIXED_ROWS
    schedule_seconds = 0.5 if scope.is_quick else SECONDS
    seconds = SECONDS + WARM_UP_SECONDS + _OVERHEAD_SECONDS
    first = [
        Arm(name="maximum", seconds=_MAXIMUM_SECONDS),
        Arm(
            name="floor",
            settings={"schedule_seconds": schedule_seconds},
            seconds=2 * schedule_seconds + _OVERHEAD_SECONDS,
        ),
    ]
    return first + [
        Arm(
            name=f"{share} %, {'self-clocking' if rows == 0 else f'batches of {rows}'}",
            settings={"share_percent": share, "fixed_rows": rows},
            seconds=seconds,
        )
        for share in shares
        for rows in (0, *sizes)
    ]


async def run(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Run one repeat. The loads are shares of the maximum of the first repeat."""
    if arm.name == "floor":
        schedule_seconds = float(arm.settings["schedule_seconds"])
        floor: Floor = await measure_floor(site, schedule_seconds)
        return msgspec.convert(msgspec.to_builtins(floor), Figures)
    load = Load(rival="engine", orders=MAXIMUM_ORDERS, batch_rows=5_000)
    if arm.name == "maximum":
        return await run_open(site, OpenJob(load=load, rate_per_second=0.0, warm_up_orders=50_000))
    rate = maximum(earlier) * int(arm.settings["share_percent"]) / 100
    fixed_rows = int(arm.settings["fixed_rows"])
    job = OpenJob(
        load=msgspec.structs.replace(
            load,
            orders=int(rate * (SECONDS + WARM_UP_SECONDS)),
            batch_rows=fixed_rows or load.batch_rows,
        ),
        rate_per_second=rate,
        warm_up_orders=int(rate * WARM_UP_SECONDS),
        fixed_rows=fixed_rows,
    )
    return await run_open(site, job)


def maximum(lines: Sequence[Line]) -> float:
    """Return the orders per second that the schedule's shares are of. Raises RunFailed without."""
    found = [
        float(line.figures["delivered_per_second"])
        for line in lines
        if line.arm == "maximum" and line.figures is not None and line.repeat == 0
    ]
    if not found:
        raise RunFailed("the maximum is not known yet")
    return statistics.median(found)
