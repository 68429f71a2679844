"""Intake and messages over a Kafka that asks for TLS and a login.

A chain's path is in `tests/integration/chainctl/test_secured.py`, Spark's part in
`tests/integration/chain_verifier/test_secured.py`.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable

import pytest

import outbox
from chain_kernel.clients.kafka import make_producer, started
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.sql import OWNER, SEQUENCER_WRITER
from chainctl.admin import create_chain
from chainctl.database import connected_to
from chainctl.settings import Settings
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from outbox import Consumer, ConsumerConfig, Status
from outbox.consumer.delivery import Delivery
from outbox.roles import OUTBOX_WRITER
from sequencer import (
    SequencerConfig,
    TopicIntake,
    TopicIntakeConfig,
    check_intake_topic,
    open_sequencer,
)
from sequencer.intake.topic import TopicIntakeStats
from tests.deadlines import deadline
from tests.integration.outbox.conftest import Sender, make_sender
from tests.opened import connected
from tests.secured_kafka import PREFIX, RECEIVER, SEQUENCER, SecuredKafka

RoleDsn = Callable[[str], str]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

CHAIN_ID = 7

ways = pytest.mark.parametrize("way", ["login", "mutual"])


def configs(secured_kafka: SecuredKafka, way: str) -> tuple[KafkaConfig, KafkaConfig]:
    """Return the config of a writer, and of one who may only read."""
    make = getattr(secured_kafka, way)
    return make(SEQUENCER), make(RECEIVER)


def settings_of(database: str, kafka: KafkaConfig) -> Settings:
    """Return the settings of `chainctl` that mean the same."""
    fields = {name: getattr(kafka, name) for name in KafkaConfig.__struct_fields__}
    servers, _ = fields.pop("bootstrap_servers"), fields.pop("sasl_token")
    named = {f"kafka_{name}": value for name, value in fields.items()}
    return Settings(database=database, kafka=servers, **named)


def fresh_name() -> str:
    return f"{PREFIX}{secrets.token_hex(6)}"


async def make_chain(database: str, kafka: KafkaConfig) -> str:
    """Create the chain as an operator does, and return its topic."""
    topic = fresh_name()
    settings = settings_of(database, kafka)
    async with connected_to(settings.database_dsn(), 10.0, OWNER) as connection:
        done = await create_chain(connection, settings.kafka_config(), CHAIN_ID, topic=topic)
    assert done.topic_created
    return topic


@ways
async def test_orders_are_taken_from_a_topic(
    secured_kafka: SecuredKafka, database: str, role_dsn: RoleDsn, way: str
) -> None:
    leader, reader = configs(secured_kafka, way)
    await make_chain(database, leader)
    source = fresh_name()
    secured_kafka.make_topic(source, partitions=2)
    async with started(make_producer(leader, "shop")) as producer:
        for partition, value in ((0, b"one"), (1, b"two")):
            await producer.send_and_wait(source, value, partition=partition)
    taken = TopicIntakeConfig(kafka=reader, topic=source)
    await check_intake_topic(taken)
    config = SequencerConfig(chain_id=CHAIN_ID, database=role_dsn(SEQUENCER_WRITER), kafka=leader)
    are_taken = asyncio.Event()
    async with deadline(), open_sequencer(config) as sequencer:

        def note(stats: TopicIntakeStats) -> None:
            if stats.records == 2:
                are_taken.set()

        intake = TopicIntake(taken, sequencer, on_progress=note)
        running = asyncio.create_task(intake.run())
        await are_taken.wait()
        running.cancel()
        await asyncio.wait([running])
    async with connected(database) as admin:
        found = await admin.fetch("SELECT payload FROM chain_event WHERE chain_id = $1", CHAIN_ID)
    assert {row["payload"] for row in found} == {b"one", b"two"}


@pytest.fixture
async def sender(
    postgres_server: PostgresServer, database_with: Callable[..., str], secured_kafka: SecuredKafka
) -> AsyncIterator[Sender]:
    """A business with an outbox, and in the same database the consumer's tables."""
    plain = secured_kafka.server.bootstrap
    async for made in make_sender(postgres_server, database_with("outbox", "inbox"), plain):
        yield made


@ways
async def test_message_is_relayed_consumed_and_confirmed(
    secured_kafka: SecuredKafka, sender: Sender, way: str
) -> None:
    kafka, _ = configs(secured_kafka, way)
    name = fresh_name()
    await sender.set_up(topic=name, consumers=(name,))
    consumer = Consumer(
        ConsumerConfig(name=name, topics=(name,), kafka=kafka, database=sender.dsns[SUPERUSER])
    )
    handled: list[bytes] = []

    async def handle(delivery: Delivery, connection: object) -> None:
        handled.append(delivery.payload)

    business = await sender.connect(OUTBOX_WRITER)
    async with deadline(), sender.relay(kafka=kafka, name=f"{name}.relay"), consumer:
        running = asyncio.create_task(consumer.run(handle))
        async with business.transaction():
            message_id = await outbox.add(business, "clearing", b"trade")
        await outbox.wake(business)
        await sender.until_status(message_id, Status.CONSUMED)
        consumer.stop()
        await running
    assert handled == [b"trade"]
