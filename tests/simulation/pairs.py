"""Two faults at once: the second one meets the recovery from the first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .faults import later

if TYPE_CHECKING:
    from collections.abc import Callable

    from .world import World

OPEN_SECONDS = 0.3
"""Most take-overs of a world come to their open within this time, or are in the middle of it."""

AWAY_SECONDS = 4.0
"""Longer than a lease, and than any deadline of one question."""


def begin_pair(world: World, name: str) -> None:
    """Do the first fault of the pair; the second one comes by itself."""
    world.note("pair:", name)
    PAIRS[name](world)


def both_servers_gone(world: World) -> None:
    """One of them comes back before the other, or alone."""
    world.database_server.crash()
    world.break_broker("is_away")
    later(world, AWAY_SECONDS, world.heal_database)
    later(world, AWAY_SECONDS, world.heal_broker)


def broker_silent_and_connection_lost(world: World) -> None:
    """The leader is gone, the broker answers nothing, and the new one loses its connection."""
    world.break_broker("is_silent")
    later(world, AWAY_SECONDS, world.heal_broker)
    depose(world)
    at_take_over(world, world.database_server.drop_connections)


def broker_away_and_connection_lost(world: World) -> None:
    """The same with a broker that refuses at once; the database is away for a moment, too."""
    world.break_broker("is_away")
    later(world, AWAY_SECONDS, world.heal_broker)
    depose(world)
    at_take_over(world, partial(crash_database_shortly, world))


def synchronous_standby_gone_at_a_take_over(world: World) -> None:
    """Each try of a take-over waits behind the one before, and all of them land in the end."""
    world.database_server.hold(lands_first=True)
    later(world, AWAY_SECONDS, world.heal_database)
    later(world, 1.0, partial(depose, world))
    if world.random.random() < 0.5:
        later(world, AWAY_SECONDS, world.database_server.drop_connections)


def topic_gone_at_a_take_over(world: World) -> None:
    """It is made again later, or never."""
    world.break_broker("is_gone")
    later(world, AWAY_SECONDS, world.heal_broker)
    later(world, 1.0, partial(depose, world))


def row_locked_during_the_recovery(world: World) -> None:
    """The database comes back, and somebody holds the row of the chain's head."""
    world.database_server.crash()
    later(world, 1.0, partial(lock_row, world))


def zombie_wakes_in_an_outage(world: World) -> None:
    """The one that took its place loses its database, while the first one wakes up."""
    for leader in world.leaders:
        leader.process.pause()
        later(world, AWAY_SECONDS, leader.process.resume)
    at_take_over(world, partial(crash_database_shortly, world))


def successor_gone_before_it_opens(world: World) -> None:
    """The new leader is killed or paused at once: the chain was taken, and has no leader."""
    depose(world)
    at_take_over(world, partial(stun_all, world))


def receiver_restarted_without_servers(world: World) -> None:
    """Its log is empty, and what it fills from breaks off."""
    for receiver in world.receivers:
        receiver.kill()
        later(world, 1.0, receiver.restart)
    world.log.wipe()
    later(world, 2.0, world.database_server.drop_connections)
    world.standby_server.crash()
    world.database_server.is_away = world.random.random() < 0.5
    later(world, 3.0, world.heal_database)


PAIRS: dict[str, Callable[[World], None]] = {
    pair.__name__.replace("_", " "): pair
    for pair in (
        both_servers_gone,
        broker_silent_and_connection_lost,
        broker_away_and_connection_lost,
        synchronous_standby_gone_at_a_take_over,
        topic_gone_at_a_take_over,
        row_locked_during_the_recovery,
        zombie_wakes_in_an_outage,
        successor_gone_before_it_opens,
        receiver_restarted_without_servers,
    )
}


def depose(world: World) -> None:
    """Have the leader go, in one of the ways in which leaders go, or take over again."""
    way = world.random.choice(("kill", "stop", "step down", "connections"))
    world.note("the leader is to go:", way)
    if way == "connections":
        world.database_server.drop_connections()
    elif way == "step down":
        world.chain.step_down = True
    for leader in list(world.leaders):
        if way == "stop":
            leader.stop()
        elif way == "kill":
            host = next(h for h in world.sequencers if h.process.name == leader.process.name)
            host.kill()
            later(world, 1.0, host.restart)


def at_take_over(world: World, work: Callable[[], None]) -> None:
    """Do `work` between the next take-over and its open, or a little later."""
    world.at_take_over.append(partial(later, world, OPEN_SECONDS, work))


def crash_database_shortly(world: World) -> None:
    world.note("database crashes")
    world.database_server.crash()
    later(world, 1.0, world.heal_database)


def lock_row(world: World) -> None:
    world.note("database back, row locked")
    world.heal_database()
    world.database_server.hold()
    later(world, AWAY_SECONDS, world.heal_database)


def stun_all(world: World) -> None:
    for host in world.sequencers:
        if host.process.name == world.chain.owner and world.random.random() < 0.5:
            host.kill()
            later(world, 1.0, host.restart)
        elif host.process.name == world.chain.owner:
            host.process.pause()
            later(world, AWAY_SECONDS, host.process.resume)
