"""An outage leaves no error for the collector, which runs rarely in a service.

An error that one of the frames in its traceback refers to is a cycle: it keeps each frame, and
what they refer to. A part without its servers makes an attempt after the other, for as long as
they are away.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

import pytest
from aiokafka.conn import AIOKafkaConnection
from msgspec.structs import replace

from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from matcher_receiver import ReceiverConfig
from orderchain import open_receiver
from outbox import Consumer, ConsumerConfig, Relay, RelayConfig
from outbox.roles import OUTBOX_RELAY
from sequencer import SequencerConfig, open_sequencer
from tests.collected import errors_left_by
from tests.deadlines import until
from tests.integration.outbox.conftest import CONSUMER

from .conftest import MakeChain
from .soak import messages_in

AWAY_SECONDS = 5.0
SETTLED_SECONDS = 4.0


async def led(config: SequencerConfig) -> None:
    async with open_sequencer(config) as sequencer:
        await sequencer.until_stopped()


async def received(config: ReceiverConfig) -> None:
    async with open_receiver(config) as receiver:
        async for run in receiver:
            await receiver.checkpoint(run)


async def relayed(config: RelayConfig) -> None:
    async with Relay(config) as relay:
        await relay.run()


async def consumed(config: ConsumerConfig) -> None:
    async with Consumer(config) as consumer:
        await consumer.run(lambda *_: asyncio.sleep(0))


@asynccontextmanager
async def running(*parts: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        yield
        assert [task for task in tasks if task.done()] == []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_connected(what: object) -> bool:
    return isinstance(what, AIOKafkaConnection) and what.connected()


async def last_words(servers: Sequence[PostgresServer | KafkaServer]) -> None:
    """Wait until the clients have seen that the servers ended.

    The driver keeps the error of a request that was under way in the frame that waited for it.
    That is once for each connection, and no attempt.
    """
    if any(isinstance(server, KafkaServer) for server in servers):
        await until(lambda: not any(map(is_connected, gc.get_objects())))
    await asyncio.sleep(SETTLED_SECONDS)


async def end_of_outage(servers: Sequence[PostgresServer | KafkaServer]) -> None:
    await asyncio.sleep(AWAY_SECONDS)
    for server in servers:
        await asyncio.to_thread(server.start)
    await asyncio.sleep(SETTLED_SECONDS)


@pytest.mark.nightly
@pytest.mark.timeout(240)
@pytest.mark.parametrize("away", ["database", "broker", "both"])
async def test_outage_leaves_no_error_for_the_collector(
    away: str,
    chain_on_breakable_servers: MakeChain,
    postgres_to_break: PostgresServer,
    kafka_to_break: KafkaServer,
) -> None:
    chain = await chain_on_breakable_servers(1)
    database = chain.database.rpartition("/")[2]
    receiver = ReceiverConfig(
        chain_id=1, name="matching", kafka=kafka_to_break.bootstrap,
        database=postgres_to_break.dsn(RECEIVER_WRITER, database),
        gap_databases=(postgres_to_break.dsn(GAP_READER, database),),
    )  # fmt: skip
    name = f"messages_{database}"
    async with messages_in(postgres_to_break, kafka_to_break.bootstrap, name) as messages:
        relay = RelayConfig(database=messages.dsns[OUTBOX_RELAY], kafka=kafka_to_break.bootstrap)
        consumer = ConsumerConfig(
            name=CONSUMER, topics=(messages.topic,), kafka=kafka_to_break.bootstrap,
            database=messages.dsns[SUPERUSER],
        )  # fmt: skip
        standby = replace(chain.config, standby=True)
        parts = [led(standby), led(standby), received(receiver), relayed(relay), consumed(consumer)]
        servers: list[PostgresServer | KafkaServer] = [postgres_to_break, kafka_to_break]
        servers = {"database": servers[:1], "broker": servers[1:]}.get(away, servers)
        async with running(*parts):
            await asyncio.sleep(SETTLED_SECONDS)
            for server in servers:
                await asyncio.to_thread(server.kill)
            await last_words(servers)
            assert await errors_left_by(end_of_outage(servers)) == []
