"""Terms one after the other in one process: what a term has held is free once it is closed."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from weakref import ref

import pytest
from msgspec.structs import replace

from chain_kernel.clients.kafka import AIOKafkaConsumer, AIOKafkaProducer
from chain_kernel.errors import Fenced, SteppedDown
from sequencer import Sequencer, SharedConnections, open_sequencer
from sequencer.assembly import Assembly
from sequencer.keys.memory import KeyTable
from sequencer.many import _hold
from sequencer.stores.session import LeaderSession
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.deadlines import deadline, until
from tests.integration.sequencer.conftest import MakeChain
from tests.lock_waits import WAITING

HEAVY = (KeyTable, Sequencer, Assembly, AIOKafkaConsumer, AIOKafkaProducer)


@contextmanager
def nothing_left() -> Iterator[list[ref[KeyTable]]]:
    """Yield a list for tables of keys, which are gone after the block, as is all that is heavy.

    The collector of a leader hardly ever runs: see `calm_collector`. Nothing is logged: what keeps
    lines, as pytest does, keeps the errors in them.
    """
    gc.collect()
    gc.disable()
    logging.disable()
    try:
        before = {id(each) for each in gc.get_objects() if isinstance(each, HEAVY)}
        tables: list[ref[KeyTable]] = []
        yield tables
        left = [each for each in gc.get_objects() if isinstance(each, HEAVY)]
        assert [each for each in left if id(each) not in before] == []
        assert tables
        assert [each for each in tables if each() is not None] == []
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()


def alive(*kinds: type) -> Counter[type]:
    """Count the objects of `kinds`, those of earlier tests included."""
    return Counter(type(each) for each in gc.get_objects() if isinstance(each, kinds))


def table_of(sequencer: Sequencer) -> ref[KeyTable]:
    memory = sequencer._keys.memory
    assert memory is not None
    return ref(memory.index.table)


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
    chain = await make_chain()
    with nothing_left() as tables:
        for term in range(terms):
            with suppress(SteppedDown, Fenced):
                async with open_sequencer(chain.config) as sequencer:
                    await sequencer.submit_many(make_orders(5, start=term * 5))
                    tables.append(table_of(sequencer))
                    await end(chain, sequencer)
            del sequencer


@pytest.mark.parametrize("terms", [pytest.param(3, marks=pytest.mark.merge), 20])
async def test_take_overs_within_one_life_leave_nothing_to_the_collector(
    make_chain: MakeChain, terms: int
) -> None:
    """Its connection ends before a commit, and in the middle of one; it goes on in a new term."""
    chain = await make_chain()
    cut = (
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE "
        "datname = current_database() AND application_name LIKE 'orderchain sequencer%'"
    )
    with nothing_left() as tables:
        before = alive(KeyTable, LeaderSession, Assembly)
        async with deadline(), open_sequencer(chain.config) as sequencer:
            for term in range(terms):
                await chain.fetch(cut)
                await sequencer.submit(f"before {term}", b"")
                async with chain.admin.transaction():
                    await chain.fetch("LOCK chain_batch")
                    submitting = asyncio.create_task(sequencer.submit(f"during {term}", b""))
                    await until(lambda: chain.fetch(WAITING))
                    await chain.fetch(cut)
                await submitting
                tables.append(table_of(sequencer))
            del submitting
            assert sequencer.stats().take_overs == 1 + 2 * terms
            more = alive(KeyTable, LeaderSession, Assembly) - before
            assert more[KeyTable] == more[LeaderSession] == 1
            assert more[Assembly] <= 1
        del sequencer


@pytest.mark.parametrize("hand_overs", [pytest.param(2, marks=pytest.mark.merge), 20])
async def test_chains_that_change_hands_leave_nothing_to_the_collector(
    make_chain: MakeChain, hand_overs: int
) -> None:
    """Between two processes of many chains, whose connections and producers stay."""
    chains = [await make_chain(number) for number in (1, 2, 3)]
    configs = [replace(chain.config, standby=True) for chain in chains]
    with nothing_left() as tables:
        before = alive(Sequencer, KeyTable)
        async with (
            deadline(),
            SharedConnections(configs) as ours,
            SharedConnections(configs) as theirs,
        ):
            holding: list[asyncio.Task[None]] = []
            for number, shared in enumerate(islice(cycle([ours, theirs]), hand_overs)):
                sequencers = [shared.sequencer(config) for config in configs]
                leaving = holding
                holding = [asyncio.create_task(_hold(each)) for each in sequencers]
                await step_down_all(chains[0], leaving)
                for sequencer in sequencers:
                    await sequencer.until_leading()
                    await sequencer.submit_many(make_orders(5, start=number * 5))
                    tables.append(table_of(sequencer))
                del leaving
                more = alive(Sequencer, KeyTable) - before
                assert more == {Sequencer: len(chains), KeyTable: len(chains)}
            await step_down_all(chains[0], holding)
            del sequencer, sequencers, holding


async def step_down_all(chain: Chain, leading: list[asyncio.Task[None]]) -> None:
    if leading:
        await chain.fetch("UPDATE chain_lease SET step_down = true")
    # Not awaited one by one: an error that is raised here would refer to its task.
    ended = await asyncio.gather(*leading, return_exceptions=True)
    assert all(isinstance(each, SteppedDown) for each in ended), ended
