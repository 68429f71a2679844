"""Two sequencers for one chain: fail-over, hand-over, the zombie, and the double start."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from local_stack import PostgresServer
from sequencer import open_sequencer
from tests.builders.created_chain import Chain
from tests.deadlines import deadline, stretched, until

from .addresses import through
from .client import Client
from .conftest import MakeChain, StartWorker
from .inspector import inspect, inspect_topic
from .processes import Worker
from .proxy import Proxy, is_commit, postgres_requests


async def start_pair(chain: Chain, start_worker: StartWorker) -> tuple[Worker, Worker]:
    """Start a leader and, once it leads, a standby; return once the standby has looked."""
    leader = await start_worker(chain.config)
    await leader.until_leading()
    standby = await start_worker(chain.with_settings(standby=True, owner="standby"))
    await until_looking(chain)
    return leader, standby


async def until_looking(chain: Chain) -> None:
    """Wait until a second store looks at the chain: the standby's."""
    statement = (
        "SELECT count(*) >= 2 FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'orderchain sequencer ' || $1::int AND state = 'idle'"
    )
    await until(lambda: chain.value(statement, chain.chain_id))


@pytest.mark.guarantee("G3")
async def test_killed_leader_is_followed_by_the_hot_standby(
    make_chain: MakeChain, start_worker: StartWorker, seeded: random.Random
) -> None:
    chain = await make_chain()
    client = Client(seeded)
    leader, standby = await start_pair(chain, start_worker)
    load = asyncio.create_task(client.run(leader))
    await leader.until_acked(500)
    assert standby.leads is None
    await leader.kill()
    report = await standby.until_leading()
    assert leader.leads is not None
    assert report.epoch > leader.leads.epoch
    await load
    await client.catch_up(standby, leader)
    assert await standby.stop() == 0
    await inspect(chain)
    await inspect_topic(chain)


@pytest.mark.guarantee("G7")
async def test_zombie_in_mid_copy_is_refused_and_says_so(
    make_chain: MakeChain,
    start_worker: StartWorker,
    postgres_server: PostgresServer,
    capfd: pytest.CaptureFixture[str],
) -> None:
    chain = await make_chain(commit_seconds=0.9)
    async with Proxy(postgres_server.config.port, postgres_requests) as proxy:
        zombie = await start_worker(through(chain, proxy), payload_bytes=1_000)
        await zombie.until_leading()
        await zombie.submit(["before"])
        await zombie.until_acked(1)
        standby = await start_worker(chain.with_settings(standby=True))
        await until_looking(chain)
        trap = proxy.set_trap(is_commit, lets_through=False)
        batch = [f"zombie{n}" for n in range(4_000)]
        await zombie.submit(batch)
        await trap.wait()
        zombie.freeze()
        leads = await standby.until_leading()
        await standby.submit(["after"])
        await standby.until_acked(1)
        trap.release()
        zombie.thaw()
        assert await zombie.until_gone() == 3
    assert zombie.ended is not None
    assert zombie.ended.error == "Fenced"
    assert "another process took it over" in zombie.ended.text
    assert {report.error for report in zombie.refused.values()} == {"Fenced"}
    assert zombie.refused.keys() == set(batch)
    assert await standby.stop() == 0
    await inspect(chain)
    await inspect_topic(chain)
    epochs = await chain.fetch("SELECT last_id, epoch FROM chain_batch WHERE epoch > 0 ORDER BY 1")
    assert [row["epoch"] for row in epochs] == [leads.epoch - 1, leads.epoch]


@pytest.mark.guarantee("G7")
async def test_idle_zombie_learns_it(make_chain: MakeChain, start_worker: StartWorker) -> None:
    chain = await make_chain()
    zombie, standby = await start_pair(chain, start_worker)
    await zombie.submit(["before"])
    await zombie.until_acked(1)
    zombie.freeze()
    await standby.until_leading()
    zombie.thaw()
    assert await zombie.until_gone() == 3
    assert zombie.ended is not None
    assert zombie.ended.error == "Fenced"
    await standby.submit(["after"])
    await standby.until_acked(1)
    assert await standby.stop() == 0
    await inspect(chain)
    await inspect_topic(chain)


async def test_short_freeze_ends_no_leader(
    make_chain: MakeChain, start_worker: StartWorker
) -> None:
    chain = await make_chain(lease_seconds=20.0)
    leader, standby = await start_pair(chain, start_worker)
    leader.freeze()
    await leader.submit([f"k{n}" for n in range(300)])
    leader.thaw()
    await leader.until_acked(300)
    assert standby.leads is None
    assert await leader.stop() == 0
    await inspect(chain)


async def test_leader_whose_database_was_away_for_longer_than_a_lease_goes_on(
    chain_on_breakable_postgres: MakeChain, postgres_to_break: PostgresServer
) -> None:
    lease_seconds = stretched(3.0)
    chain = await chain_on_breakable_postgres(lease_seconds=lease_seconds)
    standby = open_sequencer(chain.with_settings(standby=True, owner="standby"))
    async with open_sequencer(chain.config) as leader:
        waiting = asyncio.create_task(standby.__aenter__())
        await until(lambda: standby._store.line.is_open)  # type: ignore[attr-defined]
        await asyncio.to_thread(postgres_to_break.stop)
        await asyncio.sleep(1.5 * lease_seconds)  # the database's silence, not the leader's
        await asyncio.to_thread(postgres_to_break.start)
        async with deadline():
            ack = await leader.submit("after", b"")
        assert not waiting.done()
        assert leader.stats().epoch == 2  # its own
    async with AsyncExitStack() as closing:
        await waiting
        closing.push_async_exit(standby)
        last = await standby.submit("last", b"")
    assert last.pid == ack.id
    assert [row.key for row in await inspect(chain)] == ["after", "last"]


@pytest.mark.guarantee("G1", "G7")
@pytest.mark.parametrize(
    "rounds", [5, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
async def test_two_started_at_once_yield_one_leader_and_no_fork(
    make_chain: MakeChain, start_worker: StartWorker, seeded: random.Random, rounds: int
) -> None:
    chain = await make_chain()
    for number in range(rounds):
        pair = await asyncio.gather(*(start_worker(chain.config) for _ in range(2)))
        for name, worker in zip("ab", pair, strict=True):
            await worker.submit([f"{name}{number}.{n}" for n in range(seeded.randint(1, 200))])
        loser = await first_to_end(*pair)
        assert loser.ended is not None
        assert loser.ended.error == "ChainLed"
        assert loser.process.returncode == 3
        leader = pair[0] if loser is pair[1] else pair[1]
        await leader.until_answered(leader.submitted)
        assert loser.acked == {}
        # Every other time nothing shows the next pair that the leader is gone.
        if number % 2:
            await leader.kill()
        else:
            assert await leader.stop() == 0
    await inspect(chain)


async def first_to_end(*workers: Worker) -> Worker:
    """Return the worker that ends first, once it is gone."""
    ends = {asyncio.create_task(worker.until_gone()): worker for worker in workers}
    done, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return ends[done.pop()]
