"""A primary that is replaced by its synchronous standby, and comes back; the next one, too."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .faults import later
from .pairs import AWAY_SECONDS, depose

if TYPE_CHECKING:
    from tests.doubles.wire import WiredServer

    from .world import World

NEXT_SECONDS = 2.0
"""Before the world is healed, in most worlds; the one before may be back by then, or not."""


def lose_standby(world: World) -> None:
    """Commits wait for the standby; what the first of them has stored is acknowledged to nobody."""
    world.note("the synchronous standby is out of reach")
    world.database_server.hold(lands_first=True)
    later(world, 1.0, partial(fail_over, world, world.database_server))


def fail_over(world: World, old: WiredServer) -> None:
    """The primary is killed, or frozen; its standby is promoted."""
    if world.is_healed or world.database.cancels_waits:
        old.let_go()  # a standby that is not waited for lacks what was acknowledged
        return
    world.note("the standby is promoted, the old primary:", world.plan.old_primary)
    world.promote()
    old.hold(lands_first=True)  # whatever has healed meanwhile: it acknowledges nothing any more
    if world.plan.old_primary == "thawed":
        old.freeze()
    else:
        old.crash()
    if world.plan.old_primary != "gone":
        later(world, AWAY_SECONDS, partial(come_back, world, old))
        for _ in range(2):
            later(world, 2 * AWAY_SECONDS, partial(depose, world))
    if world.database.server.timeline <= world.plan.fail_overs:
        later(world, NEXT_SECONDS, partial(lose_standby, world))


def come_back(world: World, old: WiredServer) -> None:
    """It answers at its address from now on."""
    world.note("the old primary answers")
    old.is_away = False
    old.thaw()
