"""The floor under open load: a stall makes late whatever falls due in it."""

import asyncio
import time

from benchmarks.runs.open_load import timed_from_due

STALL_SECONDS = 0.1


async def test_stall_counts_for_every_call_that_falls_due_in_it() -> None:
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            # The disk would hold it up just so: nothing else is done meanwhile.
            time.sleep(STALL_SECONDS)  # noqa: ASYNC251
        await asyncio.sleep(0)

    found = await timed_from_due(call, seconds=0.2, pace_seconds=0.005)
    assert len(found) == calls == 40
    assert found[2] >= STALL_SECONDS * 1e9
    # Ten and more fell due in the first half of the stall: each waited for at least the other half.
    assert sum(latency_ns >= STALL_SECONDS / 2 * 1e9 for latency_ns in found) >= 10
