"""A receiver that is started while the broker is away."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.errors import ConnectError, TopicError
from chain_kernel.testing.memory_log import MemoryFrameSource, MemoryLog
from chain_kernel.testing.virtual_loop import run_virtual, virtual_clock
from matcher_receiver import Receiver, ReceiverConfig
from tests.builders.chains import ids_of, make_chain
from tests.tuned import tuned

from .memory import MemorySource

if TYPE_CHECKING:
    from chain_kernel.model import Run
    from tests.builders.chains import Chain


def receiver_of(chain: Chain, frames: MemoryFrameSource, **settings: Any) -> Receiver:
    config = tuned(ReceiverConfig(chain_id=chain.chain_id), **settings)
    return Receiver(config, frames, MemorySource(chain), None, virtual_clock(), random=Random(5))


async def take(receiver: Receiver, until_id: int) -> list[Run]:
    runs: list[Run] = []
    while not runs or runs[-1].last_id < until_id:
        runs.append(await anext(receiver))
    return runs


def test_start_without_the_broker_is_refused_where_it_is_required() -> None:
    async def start() -> None:
        log = MemoryLog()
        log.is_away = True
        with pytest.raises(ConnectError, match="kafka"):
            await receiver_of(make_chain([4]), MemoryFrameSource(log)).__aenter__()

    run_virtual(start())


def test_start_without_an_optional_broker_delivers_from_the_database_and_then_live() -> None:
    async def receive() -> None:
        chain, log = make_chain([4, 6]), MemoryLog()
        log.is_away = True
        frames = MemoryFrameSource(log)
        async with receiver_of(chain, frames, kafka_at_start="optional") as receiver:
            assert ids_of(await take(receiver, chain.mark().id)) == chain.ids
            chain.add(3)
            began = virtual_clock().time()
            await take(receiver, chain.mark().id)
            assert virtual_clock().time() - began <= 2.0, "by polling"

            log.is_away = False
            behind = asyncio.ensure_future(anext(receiver))
            await asyncio.sleep(3.0)
            chain.add(2)  # published by nobody
            log.append(chain.frames(chain.add(5)))
            runs = [await behind, *await take(receiver, chain.mark().id)]
            assert ids_of(runs) == chain.ids[13:]
            assert receiver.stats().rows_live == 5

    run_virtual(receive())


@pytest.mark.parametrize("kafka_at_start", ["required", "optional"])
def test_topic_that_is_not_fit_is_a_broker_that_is_away_until_it_is_made_right(
    kafka_at_start: str,
) -> None:
    class Unfit(MemoryFrameSource):
        is_fit = False

        async def start(self) -> None:
            if not self.is_fit:
                raise TopicError("topic", "t", "one partition")
            await super().start()

    async def receive() -> None:
        chain, log = make_chain([4]), MemoryLog()
        frames = Unfit(log)
        async with receiver_of(chain, frames, kafka_at_start=kafka_at_start) as receiver:
            assert ids_of(await take(receiver, chain.mark().id)) == chain.ids
            frames.is_fit = True
            await asyncio.sleep(3.0)
            log.append(chain.frames(chain.add(5)))
            await take(receiver, chain.mark().id)
            assert receiver.stats().rows_live == 5

    run_virtual(receive())


def test_close_while_the_broker_does_not_answer_ends_at_once() -> None:
    class Silent(MemoryFrameSource):
        async def start(self) -> None:
            await asyncio.sleep(1_000.0)

    async def start_and_close() -> None:
        chain = make_chain([4])
        began = virtual_clock().time()
        silent = Silent(MemoryLog())
        async with receiver_of(chain, silent, kafka_at_start="optional") as receiver:
            await take(receiver, chain.mark().id)
        assert virtual_clock().time() - began <= 1.5

    run_virtual(start_and_close())
