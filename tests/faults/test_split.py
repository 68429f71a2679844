"""Two servers that both say that they are the primary: a leader decides by the one of its term.

The synchronous standby is promoted, and the old primary comes back at its address, the first in
every list of hosts. It can acknowledge nothing, but it answers each question.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from chain_kernel.clients import session
from chain_kernel.sql import GAP_READER
from gapfill import GapReader, GapReaderConfig
from local_stack import KafkaServer
from sequencer import open_sequencer, open_sequencers
from tests.builders.created_chain import Chain
from tests.builders.standbys import ServerPair
from tests.deadlines import deadline, until
from tests.tuned import tuned

from .chains import create_chain, promoted, require_whole
from .conftest import MakeChain, StartWorker
from .inspector import inspect, inspect_topic
from .processes import Worker
from .test_durability import WAITING
from .test_failover import until_looking

PATIENT = {"lease_seconds": 3.0, "commit_seconds": 2.0, "connect_seconds": 5.0}
SENT_AGAIN = ("K", "c#5")
"""One key that is remembered in pages, and one by its client's number."""
BEATS = 10
"""More than a leader has in one lease."""


async def until_beaten(chain: Chain, leader: Worker) -> None:
    """Wait for beats of `leader` on the promoted server, under the epoch with which it began."""
    assert leader.leads is not None
    beats = "SELECT epoch, counter FROM chain_lease WHERE chain_id = $1"
    (first,) = await chain.fetch(beats, chain.chain_id)
    async with deadline():
        while True:
            assert leader.ended is None, f"its lease is on another server: {leader.ended}"
            (now,) = await chain.fetch(beats, chain.chain_id)
            assert now["epoch"] == leader.leads.epoch
            if now["counter"] >= first["counter"] + BEATS:
                return
            await asyncio.sleep(0.05)


async def answered(worker: Worker, *keys: str) -> None:
    """Submit `keys`, and wait until each is acknowledged."""
    await worker.submit(list(keys))
    await worker.until_answered(list(keys))
    assert not worker.refused, worker.refused


async def hand_over(leader: Worker, standby: Worker) -> None:
    assert await leader.stop() == 0
    await standby.until_leading()


@pytest.mark.guarantee("G3", "G4", "G15")
async def test_key_acknowledged_after_a_fail_over_has_one_row_once_the_old_primary_thaws(
    chain_on_server_pair: MakeChain, server_pair: ServerPair, start_worker: StartWorker
) -> None:
    chain = await chain_on_server_pair(**PATIENT)
    leader = await start_worker(chain.config)
    await leader.until_leading()
    await answered(leader, "before")
    server_pair.primary.freeze()
    await asyncio.to_thread(server_pair.promote)
    chain = promoted(chain, server_pair)
    await answered(leader, *SENT_AGAIN)
    standby = await start_worker(chain.with_settings(standby=True))
    await until_looking(chain)
    server_pair.primary.thaw()
    await hand_over(leader, standby)
    await answered(standby, *SENT_AGAIN, "after")
    await until_beaten(chain, standby)
    assert await standby.stop() == 0
    await inspect(chain)
    await inspect_topic(chain)
    await require_whole(chain)


@pytest.mark.guarantee("G3", "G4", "G15")
async def test_key_that_only_the_old_primary_has_is_acknowledged_with_a_row_of_the_chain(
    chain_on_server_pair: MakeChain, server_pair: ServerPair, start_worker: StartWorker
) -> None:
    chain = await chain_on_server_pair(**PATIENT)
    lost = await start_worker(chain.config)
    await lost.until_leading()
    await answered(lost, "before")
    await asyncio.to_thread(server_pair.standby.stop)
    await lost.submit([*SENT_AGAIN])
    await until(lambda: chain.value(WAITING))
    await lost.kill()
    await asyncio.to_thread(server_pair.primary.kill)
    await asyncio.to_thread(server_pair.standby.start)
    await asyncio.to_thread(server_pair.promote)
    chain = promoted(chain, server_pair)
    leader = await start_worker(chain.with_settings(standby=True))
    await leader.until_leading()
    await answered(leader, "after")
    standby = await start_worker(chain.with_settings(standby=True))
    await until_looking(chain)
    await asyncio.to_thread(server_pair.primary.start)
    await hand_over(leader, standby)
    await answered(standby, *SENT_AGAIN, "last")
    await until_beaten(chain, standby)
    assert await standby.stop() == 0
    await inspect(chain)
    await inspect_topic(chain)
    await require_whole(chain)


@pytest.mark.guarantee("G3", "G4", "G15")
async def test_chains_that_share_sessions_keep_their_keys_once_the_old_primary_thaws(
    chain_on_server_pair: MakeChain, server_pair: ServerPair, kafka_server: KafkaServer
) -> None:
    chain = await chain_on_server_pair(**PATIENT)
    database = chain.database.rpartition("/")[2]
    await create_chain(server_pair.primary, database, kafka_server, 2, **PATIENT)
    configs = [chain.with_settings(chain_id=chain_id) for chain_id in (1, 2)]
    standbys = [tuned(config, standby=True, owner="standby") for config in configs]
    async with AsyncExitStack() as stack:
        async with open_sequencers(configs) as leaders:
            for leader in leaders.values():
                await leader.submit("before", b"")
            server_pair.primary.freeze()
            await asyncio.to_thread(server_pair.promote)
            for leader in leaders.values():
                await leader.submit("K", b"")
            waiting = await stack.enter_async_context(open_sequencers(standbys))
            server_pair.primary.thaw()
        for leader in waiting.values():
            await leader.until_leading()
            await leader.submit("K", b"")
            await leader.submit("after", b"")
    for config in configs:
        led = replace(promoted(chain, server_pair), chain_id=config.chain_id, config=config)
        await inspect(led)
        await require_whole(led)


async def test_reader_that_never_rests_comes_to_the_promoted_server(
    chain_on_server_pair: MakeChain, server_pair: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_LIFE_SECONDS", 0.5)
    chain = await chain_on_server_pair(**PATIENT)
    database = chain.database.rpartition("/")[2]
    dsn = server_pair.dsn(GAP_READER, database)
    async with GapReader(GapReaderConfig(database=dsn, chain_id=1, linger_seconds=60)) as reader:
        assert (await reader.standing(0)).head.last_id == 0
        server_pair.primary.freeze()
        await asyncio.to_thread(server_pair.promote)
        server_pair.primary.thaw()
        async with open_sequencer(chain.config) as leader:
            ack = await leader.submit("K", b"")
        async with deadline():
            while (await reader.standing(0)).head.last_id < ack.id:
                pass
