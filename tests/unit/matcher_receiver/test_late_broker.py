"""A receiver that is started while the broker is away, or has no fit topic for it."""

import asyncio
from typing import Any

import pytest

from chain_kernel.errors import ConnectError, TopicError
from chain_kernel.testing.memory_log import MemoryFrameSource, MemoryLog
from tests.builders.chains import ids_of
from tests.virtual import virtual

from .rig import Rig, take


class Unfit(MemoryFrameSource):
    """A topic that somebody makes right later."""

    is_fit = False

    async def start(self) -> None:
        if not self.is_fit:
            raise TopicError("topic", "t", "one partition")
        await super().start()


def rig_over(frames: Any) -> Rig:
    rig = Rig([4])
    rig.frames = frames
    return rig


@virtual
async def test_start_without_an_optional_broker_delivers_from_the_database_and_then_live() -> None:
    log = MemoryLog()
    log.is_away = True
    rig = rig_over(MemoryFrameSource(log))
    with pytest.raises(ConnectError, match="kafka"):
        await rig.receiver().__aenter__()
    rig = rig_over(MemoryFrameSource(log))
    async with rig.live(kafka_at_start="optional") as receiver:
        rig.chain.add(3)
        await take(receiver, rig.chain.mark().id)  # by polling

        log.is_away = False
        behind = asyncio.ensure_future(anext(receiver))
        await asyncio.sleep(3.0)
        rig.chain.add(2)  # published by nobody
        log.append(rig.chain.frames(rig.chain.add(5)))
        runs = [await behind, *await take(receiver, rig.chain.mark().id)]
        assert ids_of(runs) == rig.chain.ids[7:]
        assert receiver.stats().rows_live == 5


@pytest.mark.parametrize("kafka_at_start", ["required", "optional"])
@virtual
async def test_topic_that_is_not_fit_is_a_broker_that_is_away_until_it_is_made_right(
    kafka_at_start: str,
) -> None:
    log = MemoryLog()
    frames = Unfit(log)
    rig = rig_over(frames)
    async with rig.live(kafka_at_start=kafka_at_start) as receiver:
        frames.is_fit = True
        await asyncio.sleep(3.0)
        log.append(rig.chain.frames(rig.chain.add(5)))
        await take(receiver, rig.chain.mark().id)
        assert receiver.stats().rows_live == 5
