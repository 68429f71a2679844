"""Terms one after the other in one process: what a term has held is free once it is closed."""

import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from weakref import ref

import pytest

from chain_kernel.clients.kafka import AIOKafkaConsumer, AIOKafkaProducer
from chain_kernel.errors import Fenced, SteppedDown
from sequencer import Sequencer, open_sequencer
from sequencer.keys.memory import KeyTable
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.integration.sequencer.conftest import MakeChain

HEAVY = (KeyTable, Sequencer, AIOKafkaConsumer, AIOKafkaProducer)


async def leave(chain: Chain, sequencer: Sequencer) -> None:
    """Leave in good order."""


async def step_down(chain: Chain, sequencer: Sequencer) -> None:
    await chain.fetch("UPDATE chain_lease SET step_down = true")
    with pytest.raises(SteppedDown):
        await sequencer.until_stopped()


async def be_fenced(chain: Chain, sequencer: Sequencer) -> None:
    await chain.fetch("UPDATE chain_head SET epoch = epoch + 1, nonce = decode(md5('x'), 'hex')")
    with pytest.raises(Fenced):
        await sequencer.submit("too late", b"")
    await chain.fetch("UPDATE chain_lease SET released = true")


@pytest.mark.parametrize("end", [leave, step_down, be_fenced])
@pytest.mark.parametrize("terms", [10, pytest.param(100, marks=pytest.mark.nightly)])
async def test_terms_leave_nothing_to_the_collector(
    make_chain: MakeChain, terms: int, end: Callable[[Chain, Sequencer], Awaitable[None]]
) -> None:
    """The collector of a leader hardly ever runs: see `calm_collector`."""
    chain = await make_chain()
    gc.collect()
    gc.disable()
    try:
        before = {id(each) for each in gc.get_objects() if isinstance(each, HEAVY)}
        tables = []
        for term in range(terms):
            with suppress(SteppedDown, Fenced):
                async with open_sequencer(chain.config) as sequencer:
                    await sequencer.submit_many(make_orders(5, start=term * 5))
                    memory = sequencer._keys.memory
                    assert memory is not None
                    tables.append(ref(memory.index.table))
                    await end(chain, sequencer)
            del sequencer, memory
        left = [each for each in gc.get_objects() if isinstance(each, HEAVY)]
        assert [each for each in left if id(each) not in before] == []
        assert [each for each in tables if each() is not None] == []
    finally:
        gc.enable()
