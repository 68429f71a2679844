"""kill -9 at random times, and at the worst one."""

import asyncio
import random

import pytest

from local_stack import PostgresServer
from tests.builders.created_chain import Chain

from .addresses import through
from .client import Client
from .conftest import MakeChain, StartWorker
from .inspector import inspect, inspect_topic
from .processes import Worker
from .proxy import Proxy, is_commit, postgres_requests


@pytest.mark.guarantee("G1", "G2", "G3", "G4")
@pytest.mark.parametrize(
    "rounds", [3, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
async def test_kill_under_load_loses_and_doubles_nothing(
    make_chain: MakeChain, start_worker: StartWorker, seeded: random.Random, rounds: int
) -> None:
    chain = await make_chain()
    client = Client(seeded)
    dead: Worker | None = None
    for number in range(rounds):
        worker = await start_worker(chain.config)
        await worker.until_leading()
        if dead is not None:
            await client.catch_up(worker, dead)
        load = asyncio.create_task(client.run(worker))
        await worker.until_acked(len(worker.acked) + seeded.randint(1, 1_500))
        await worker.kill()
        await load
        dead = worker
        if rounds < 10 or number % 20 == 0:
            await inspect(chain)
    await finish(chain, start_worker, client, dead)


async def finish(
    chain: Chain, start_worker: StartWorker, client: Client, dead: Worker | None
) -> None:
    """Start once more, submit again what is open, stop in order, and inspect all."""
    worker = await start_worker(chain.config)
    await worker.until_leading()
    if dead is not None:
        await client.catch_up(worker, dead)
    assert await worker.stop() == 0
    await inspect(chain)
    await inspect_topic(chain)


@pytest.mark.guarantee("G2", "G14")
async def test_kill_between_commit_and_send_is_published_by_the_next_one(
    make_chain: MakeChain,
    start_worker: StartWorker,
    postgres_server: PostgresServer,
    seeded: random.Random,
) -> None:
    chain = await make_chain()
    client = Client(seeded)
    async with Proxy(postgres_server.config.port, postgres_requests) as proxy:
        worker = await start_worker(through(chain, proxy))
        await worker.until_leading()
        await worker.submit(client.new_keys(300))
        await worker.until_acked(300)
        trap = proxy.set_trap(is_commit, lets_through=True)
        await worker.submit(client.new_keys(300))
        await trap.wait()
        await worker.kill()
    assert len(await inspect(chain)) == 600
    await finish(chain, start_worker, client, worker)
