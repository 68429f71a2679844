"""What is left of the rate when PostgreSQL's checkpoints come along?

The runs of other questions are short; these last longer than `checkpoint_timeout`, so that each
sees a checkpoint begin. A run that saw none has no figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from benchmarks.ends import RunFailed
from benchmarks.question import Arm, Figures, Line, Scope, load_arm
from benchmarks.running import run_arm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site

TITLE = "A run that sees checkpoints"

ORDERS = 6_000_000
"""More than 30 s of the fastest rival; both ends hold them in memory, some 2 GB."""
PROOF_SECONDS = 40.0
REPEATS_MAX = 3


def arms(scope: Scope) -> list[Arm]:
    """Return a long run of the engine and of the bare pipe, and a short one of each."""
    rivals = ("bare_pipe", "engine")
    short = [load_arm(scope, rival, 1_000, name=f"{rival}, short") for rival in rivals]
    long = [load_arm(scope, rival, 1_000, name=f"{rival}, long", orders=ORDERS) for rival in rivals]
    return short + [
        replace(arm, seconds=arm.seconds + PROOF_SECONDS, repeats_max=REPEATS_MAX) for arm in long
    ]


async def run(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Run the load; a long run without a checkpoint has failed."""
    figures = await run_arm(site, arm, earlier)
    if arm.name.endswith("long") and not figures["checkpoints"]:
        raise RunFailed("no checkpoint came along")
    return figures
