"""What is left of the rate when PostgreSQL's checkpoints come along?

The runs of other questions are short. These begin shortly before a checkpoint is due, and last for
most of it on the fastest machine that we know. A run that saw none begin has no figure.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from benchmarks.chains import connect_to
from benchmarks.ends import RunFailed
from benchmarks.question import Arm, Figures, Line, Scope, load_arm
from benchmarks.running import run_arm, run_load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site

TITLE = "A run that sees checkpoints"

ORDERS = 6_000_000
"""20 s and more of the fastest rival; both ends hold them in memory, some 2 GB."""
LEAD_SECONDS = 3.0
"""How long before a checkpoint a run begins."""
PROOF_SECONDS = 40.0
WAIT_SECONDS = 45.0
"""Wait for a checkpoint to pass, so that the time of the next is known: at most twice theirs."""
REPEATS_MAX = 3
_LOOK_SECONDS = 0.1

_INTERVAL = "SELECT setting::float8 FROM pg_settings WHERE name = 'checkpoint_timeout'"
_BEGUN = "SELECT num_timed FROM pg_stat_checkpointer"


def arms(scope: Scope) -> list[Arm]:
    """Return a long run of the engine and of the bare pipe of pages, and a short one of each."""
    rivals = ("bare_pages", "engine")
    short = [load_arm(scope, rival, 1_000, name=f"{rival}, short") for rival in rivals]
    long = [load_arm(scope, rival, 1_000, name=f"{rival}, long", orders=ORDERS) for rival in rivals]
    return short + [
        replace(arm, seconds=arm.seconds + PROOF_SECONDS + WAIT_SECONDS, repeats_max=REPEATS_MAX)
        for arm in long
    ]


async def run(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Run the load; a long run without a checkpoint has failed."""
    if arm.load is None or not arm.name.endswith("long"):
        return await run_arm(site, arm, earlier)
    figures = await run_load(site, arm.load, before=partial(until_one_is_due, site))
    if not figures["checkpoints"]:
        raise RunFailed("no checkpoint came along")
    return {**figures}


async def until_one_is_due(site: Site, lead_seconds: float = LEAD_SECONDS) -> None:
    """Return `lead_seconds` before PostgreSQL's next checkpoint by time.

    They come `checkpoint_timeout` after the last one began, whether there was one to write or not.
    """
    connection = await connect_to(site.admin)
    try:
        interval_seconds = await connection.fetchval(_INTERVAL)
        async with asyncio.timeout(3 * interval_seconds):
            seen = await connection.fetchval(_BEGUN)
            while await connection.fetchval(_BEGUN) == seen:  # noqa: ASYNC110 - only this shows it
                await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await connection.close()
    await asyncio.sleep(interval_seconds - lead_seconds)
