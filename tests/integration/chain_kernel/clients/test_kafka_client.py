"""However a client of Kafka ends, no connection of it stays open."""

import asyncio
import gc
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import ConnectionGroup
from aiokafka.conn import AIOKafkaConnection

from chain_kernel.clients.kafka import close_client, start_client
from local_stack import KafkaServer
from tests.builders.topics import make_topics
from tests.deadlines import LONG_SECONDS, deadline
from tests.faults.proxy import Proxy, kafka_requests


def connections() -> int:
    """Return how many connections to Kafka this process holds."""
    return sum(
        1 for held in gc.get_objects() if type(held) is AIOKafkaConnection and held.connected()
    )


class HeldUp(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    """A member of a group that holds up its rebalance until it is released."""

    def __init__(self) -> None:
        self.has_joined = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.let_go = asyncio.Event()

    async def on_partitions_revoked(self, revoked: Any) -> None:
        if self.has_joined.is_set():
            self.is_asked.set()
            await self.let_go.wait()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.has_joined.set()


def member(bootstrap: str, group: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False,
        heartbeat_interval_ms=100,
    )  # fmt: skip


async def test_consumer_closed_in_a_rebalance_leaves_nothing(kafka_server: KafkaServer) -> None:
    name = f"held-up-{uuid.uuid4().hex[:8]}"
    await make_topics(kafka_server.bootstrap, name)
    first, second = (member(kafka_server.bootstrap, name) for _ in range(2))
    held_up = HeldUp()
    async with deadline():
        await start_client(first)
        first.subscribe([name], listener=held_up)
        await held_up.has_joined.wait()
        before = connections()
        await start_client(second)
        second.subscribe([name])
        await held_up.is_asked.wait()  # the second waits for the first from here on
        await close_client(second, 0.05)
        assert connections() == before
        held_up.let_go.set()
        await close_client(first, LONG_SECONDS)
    assert connections() == before - 2


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda servers: member(servers, "any"), id="consumer"),
        pytest.param(lambda servers: AIOKafkaProducer(bootstrap_servers=servers), id="producer"),
        pytest.param(lambda servers: AIOKafkaAdminClient(bootstrap_servers=servers), id="admin"),
    ],
)
async def test_client_whose_start_is_cut_off_anywhere_leaves_no_connection(
    kafka_server: KafkaServer, make: Callable[[str], Any]
) -> None:
    before = connections()
    for steps in range(40):
        async with deadline():
            client = make(kafka_server.bootstrap)
            starting = asyncio.create_task(start_client(client))
            for _ in range(steps):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await close_client(client, LONG_SECONDS)
            assert connections() == before


async def test_close_that_is_cancelled_leaves_no_connection(kafka_server: KafkaServer) -> None:
    before = connections()
    for steps in range(1, 20):
        async with deadline():
            consumer = member(kafka_server.bootstrap, "any")
            await start_client(consumer)
            closing = asyncio.create_task(close_client(consumer, LONG_SECONDS))
            for _ in range(steps):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            assert connections() == before


async def test_connection_that_is_made_while_its_client_ends_is_closed(
    kafka_server: KafkaServer,
) -> None:
    before = connections()
    async with deadline(), Proxy(kafka_server.config.port, kafka_requests) as proxy:
        producer = AIOKafkaProducer(bootstrap_servers=kafka_server.bootstrap)
        await start_client(producer)
        cluster = producer.client.cluster
        (broker,) = cluster.brokers()
        cluster._brokers[broker.nodeId] = broker._replace(port=proxy.port)
        trap = proxy.set_trap(lambda _: True, lets_through=False)
        asking = asyncio.create_task(
            producer.client._get_conn(broker.nodeId, group=ConnectionGroup.COORDINATION)
        )
        await trap.wait()
        await close_client(producer, LONG_SECONDS)
        trap.release()
        connection = await asking
        assert not connection.connected()
    assert connections() == before
