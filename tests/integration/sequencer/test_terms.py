"""Terms one after the other in one process: what a term has held is free once it is closed."""

from __future__ import annotations

import gc
from weakref import ref

import pytest

from chain_kernel.clients.kafka import AIOKafkaConsumer, AIOKafkaProducer
from sequencer import Sequencer, open_sequencer
from sequencer.keys.memory import KeyTable
from tests.builders.orders import make_orders
from tests.integration.sequencer.conftest import MakeChain

HEAVY = (KeyTable, Sequencer, AIOKafkaConsumer, AIOKafkaProducer)


@pytest.mark.parametrize("terms", [10, pytest.param(100, marks=pytest.mark.nightly)])
async def test_terms_leave_nothing_to_the_collector(make_chain: MakeChain, terms: int) -> None:
    """The collector of a leader hardly ever runs: see `calm_collector`."""
    chain = await make_chain()
    gc.collect()
    gc.disable()
    try:
        before = {id(each) for each in gc.get_objects() if isinstance(each, HEAVY)}
        tables = []
        for term in range(terms):
            async with open_sequencer(chain.config) as sequencer:
                await sequencer.submit_many(make_orders(5, start=term * 5))
                memory = sequencer._keys.memory
                assert memory is not None
                tables.append(ref(memory.index.table))
            del sequencer, memory
        left = [each for each in gc.get_objects() if isinstance(each, HEAVY)]
        assert [each for each in left if id(each) not in before] == []
        assert [each for each in tables if each() is not None] == []
    finally:
        gc.enable()
