"""Receivers of an idle chain without a broker cost its database next to nothing."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from chain_kernel.testing.memory_log import MemoryFrameSource
from chain_kernel.testing.memory_receiver import MemoryGapSource
from chain_kernel.testing.virtual_loop import virtual_clock
from matcher_receiver import Receiver, ReceiverConfig
from tests.deadlines import until
from tests.unit.sequencer.builders import World
from tests.virtual import virtual

RECEIVERS = 20
"""Each looks at the database every 30 s while heartbeats show a head that it has."""

IDLE_SECONDS = 60


class Idle:
    """Receivers of one process, and how often they have asked the database."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked = 0

    async def ask(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self.asked += 1
        return await work()

    def receiver(self, name: str) -> Receiver:
        database = self.world.database
        return Receiver(
            ReceiverConfig(chain_id=1, name=name),
            MemoryFrameSource(database.notices[1], has_rows=False),
            MemoryGapSource.of_database(database, 1, ask=self.ask),
            clock=virtual_clock(),
        )


@virtual
async def test_twenty_idle_receivers_ask_the_database_at_most_once_a_second_together() -> None:
    world = World()
    idle = Idle(world)
    async with AsyncExitStack() as running:
        sequencer = await running.enter_async_context(
            world.sequencer(virtual_clock(), has_broker=False, heartbeat_seconds=0.25)
        )
        receivers = [
            await running.enter_async_context(idle.receiver(f"r{number}"))
            for number in range(RECEIVERS)
        ]
        handed: list[int] = []

        async def follow(receiver: Receiver) -> None:
            handed.extend([run.last_id async for run in receiver])

        following = [asyncio.create_task(follow(each)) for each in receivers]
        last = (await sequencer.submit("k", b"x")).id
        await until(lambda: {each.head_delivered for each in receivers} == {last})
        await asyncio.sleep(15)  # the order is proven, too
        idle.asked = 0
        await asyncio.sleep(IDLE_SECONDS)
        found = idle.asked
        for each in receivers:
            each.stop()
        await asyncio.gather(*following)
    assert handed == [last] * RECEIVERS
    assert found <= IDLE_SECONDS, f"{found} readings in {IDLE_SECONDS} s"
