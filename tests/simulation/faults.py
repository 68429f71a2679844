"""What befalls a simulated world, one thing at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from chain_kernel.errors import FrameError
from chain_kernel.frame import decode_header, encode_frame
from chain_kernel.model import Event
from chain_kernel.seal import SEAL_BYTES
from chain_kernel.testing.memory_log import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from .hosts import Leader, Program
    from .world import World

YEARS_NS = 10 * 365 * 24 * 3600 * 10**9


def befall(world: World) -> None:
    """Do the next fault."""
    world.random.choice(FAULTS)(world)


def later(world: World, seconds_max: float, work: Callable[[], None]) -> None:
    world.loop.call_later(world.random.uniform(0.0, seconds_max), work)


def any_host(world: World) -> Program:
    return world.random.choice([*world.sequencers, *world.sequencers, *world.receivers])


def kill(world: World) -> None:
    host = any_host(world)
    if not host.process.is_dead:
        host.kill()
        later(world, 1.0, host.restart)


def pause(world: World) -> None:
    """Long enough, at times, that another one takes over: then a zombie wakes up."""
    host = any_host(world)
    world.note(host.name, "paused")
    host.process.pause()
    later(world, 3 * 1.0, host.process.resume)


def replace_paused(world: World) -> None:
    """A second one is started while the first one only seems dead."""
    host = any_host(world)
    paused = host.process
    if paused.is_dead or paused.is_paused:
        return
    world.note(host.name, "paused, and started a second time")
    paused.pause()
    host.start()
    later(world, 2.0, paused.resume)
    later(world, 4.0, paused.kill)


def stop(world: World) -> None:
    if world.leaders:
        leader = world.random.choice(world.leaders)
        world.note(leader.process.name, "asked to stop")
        leader.stop()


def crash_database(world: World) -> None:
    world.note("database crashes")
    world.database_server.crash()
    later(world, 1.5, world.heal_database)


def cut_database(world: World) -> None:
    world.note("database away")
    world.database_server.is_away = True
    later(world, 2.0, world.heal_database)


def spoil_standby(world: World) -> None:
    """It goes away for a while, or never replays anything again."""
    is_stuck = world.plan.is_standby_stuck and world.plan.sources == "standby first"
    world.is_standby_stuck = is_stuck
    world.note("standby", "stuck" if is_stuck else "away")
    if not is_stuck:
        world.standby_server.crash()
        later(world, 1.5, partial(_return_standby, world))


def _return_standby(world: World) -> None:
    world.standby_server.is_away = False


def spoil_topic(world: World) -> None:
    """The broker of the orders is away for a while, or the topic grows."""
    if not world.orders.is_used:
        return
    if len(world.orders.topic.logs) == world.plan.topic_partitions and world.random.random() < 0.3:
        world.note("orders: one more partition")
        world.orders.add_partition()
        return
    world.note("orders away")
    world.orders.topic.is_away = True
    later(world, 2.0, partial(_return_topic, world))


def _return_topic(world: World) -> None:
    world.orders.topic.is_away = False


def cut_broker(world: World) -> None:
    world.break_broker("is_away")
    later(world, 3.0, world.heal_broker)


def spoil_log(world: World) -> None:
    kind = world.random.choice(("truncate", "expire", "wipe"))
    world.note("log:", kind)
    if kind == "wipe":
        world.frames.wipe()
    else:
        getattr(world.frames, kind)(world.random.randrange(1, 6))


def throw_garbage(world: World) -> None:
    garbage = [b"", world.random.randbytes(200), b"OCHN" + world.random.randbytes(200)]
    put_by_a_stranger(world, garbage)


def forge_frames(world: World) -> None:
    """Somebody who reads and writes the topic, and lacks the key, sends what should come next."""
    record = world.frames.records[-1] if world.frames.records else b""
    try:
        last = decode_header(record)
    except FrameError:
        return
    world.note("forged frames")
    row = Event(last.last_id + 1, last.last_id, "forged", 0, b"")
    header = msgspec.structs.replace(
        last, first_pid=row.pid, first_id=row.id, last_id=row.id, count=1, is_batch_end=False,
        seal_before=last.seal_after if last.is_batch_end else last.seal_before,
        seal_after=bytes(SEAL_BYTES),
    )  # fmt: skip
    put_by_a_stranger(world, [encode_frame(header, [row], bytes(32))] * 3)


def put_by_a_stranger(world: World, records: list[bytes]) -> None:
    """Not before the judge, who looks at what leaders publish."""
    MemoryLog.append(world.frames, records)


def step_clock(world: World) -> None:
    host = world.random.choice(world.sequencers)
    host.clock.offset_ns = world.random.randrange(-(10**10), 10**10)


def jump_clock(world: World) -> None:
    """By years, and back."""
    host = world.random.choice(world.sequencers)
    world.note(host.name, "its clock is years ahead")
    host.clock.offset_ns = YEARS_NS
    later(world, 1.0, partial(setattr, host.clock, "offset_ns", 0))


def cancel_waits(world: World) -> None:
    """The synchronous standby is gone, and somebody has commits go on without it."""
    world.note("the synchronous standby is gone, and is not waited for")
    world.database.cancels_waits = True
    later(world, 1.5, partial(setattr, world.database, "cancels_waits", False))


def end_part(world: World) -> None:
    """A task of a leader is cancelled, as by a mistake of somebody's."""
    if not world.leaders:
        return
    leader = world.random.choice(world.leaders)
    name = world.random.choice(sorted(leader.sequencer._tasks))
    world.note(leader.process.name, "loses its task", name)
    leader.sequencer._tasks[name].cancel()
    world.loop.call_later(1.0, _require_end, world, leader, name, 2)


def _require_end(world: World, leader: Leader, name: str, looks: int) -> None:
    """Whatever must live ends the whole leader, unless that is paused."""
    if leader.until_stopped.done() or leader.process.is_dead:
        return
    looks -= not leader.process.is_paused
    if looks:
        world.loop.call_later(1.0, _require_end, world, leader, name, looks)
    else:
        world.fail(f"G17 {leader.process.name} goes on without its {name}")


FAULTS = (
    kill,
    kill,
    pause,
    pause,
    replace_paused,
    stop,
    crash_database,
    cut_database,
    cut_broker,
    spoil_log,
    throw_garbage,
    forge_frames,
    step_clock,
    spoil_standby,
    spoil_topic,
    jump_clock,
    cancel_waits,
    end_part,
)
