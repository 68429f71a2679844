"""kill -9 at random times, and at the two worst ones."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from .inspector import Chain, inspect, inspect_topic
from .processes import Acked, Worker
from .proxy import Proxy, is_commit, is_produce, kafka_requests, postgres_requests

if TYPE_CHECKING:
    from local_stack import KafkaServer, PostgresServer

    from .conftest import MakeChain, StartWorker


class Client:
    """A client that submits without end, and after a crash submits again what was not answered."""

    def __init__(self, seeded: random.Random) -> None:
        self.acked: dict[str, Acked] = {}
        self._random = seeded
        self._made = 0

    async def run(self, worker: Worker, rounds: int = 40) -> None:
        """Submit in calls of uneven size, some together, some one by one."""
        for _ in range(rounds):
            keys = self.new_keys(self._random.choice([1, 3, 40, 400]))
            await worker.submit(keys, together=self._random.random() < 0.5)

    def new_keys(self, count: int) -> list[str]:
        first, self._made = self._made, self._made + count
        return [f"k{number}" for number in range(first, self._made)]

    def note(self, worker: Worker) -> None:
        """Take over what `worker` said: an order once acknowledged never moves."""
        for key, order in worker.acked.items():
            assert self.acked.setdefault(key, order) == order, "S4: another place for the same key"

    async def catch_up(self, worker: Worker, dead: Worker) -> None:
        """Submit again what `dead` left open, and some that it had answered."""
        open_keys = [key for key in dead.submitted if key not in dead.acked]
        known = list(self.acked)
        again = self._random.sample(known, min(20, len(known))) + open_keys
        for start in range(0, len(again), 500):
            await worker.submit(again[start : start + 500], together=self._random.random() < 0.5)
        await worker.until_answered(again)
        assert not worker.refused
        self.note(worker)


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
        client.note(worker)
        dead = worker
        if rounds < 10 or number % 20 == 0:
            await inspect(chain, client.acked.values())
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
    rows = await inspect(chain, client.acked.values())
    await inspect_topic(chain, rows)
    assert {row.key for row in rows} == client.acked.keys()


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
        client.note(worker)
    assert len(client.acked) == 300
    assert len(await inspect(chain, client.acked.values())) == 600
    await finish(chain, start_worker, client, worker)


async def test_kill_before_the_commit_leaves_nothing_of_the_batch(
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
        trap = proxy.set_trap(is_commit, lets_through=False)
        await worker.submit(client.new_keys(300))
        await trap.wait()
        await worker.kill()
        trap.cut()
    assert await inspect(chain) == []
    await finish(chain, start_worker, client, worker)


async def test_kill_in_the_middle_of_a_send_is_sent_again(
    chain_on_breakable_kafka: MakeChain,
    start_worker: StartWorker,
    kafka_to_break: KafkaServer,
    seeded: random.Random,
) -> None:
    chain = await chain_on_breakable_kafka()
    client = Client(seeded)
    listener = kafka_to_break.config.proxied
    assert listener is not None
    async with Proxy(listener.port, kafka_requests, port=listener.advertised_port) as proxy:
        kafka = f"127.0.0.1:{proxy.port}"
        worker = await start_worker(chain.with_settings(kafka=kafka, heartbeat_seconds=60.0))
        await worker.until_leading()
        trap = proxy.set_trap(is_produce, lets_through=False)
        await worker.submit(client.new_keys(300))
        await worker.until_acked(300)
        await trap.wait()
        await worker.kill()
        client.note(worker)
    await finish(chain, start_worker, client, worker)


def through(chain: Chain, proxy: Proxy):  # type: ignore[no-untyped-def]
    """Return the settings by which a sequencer reaches the database through `proxy`."""
    address, _, name = chain.config.database.rpartition("/")
    host, _, _ = address.rpartition(":")
    return chain.with_settings(database=f"{host}:{proxy.port}/{name}?sslmode=disable")
