"""The whole path over a Kafka that asks for TLS and a login, and lets each do no more than it must.

Spark's part is in `tests/integration/chain_verifier/test_secured.py`.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import asyncpg
import pytest

import outbox
from chain_kernel.clients.kafka import TopicPartition, make_consumer, make_producer, started
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import is_broker_there
from chain_kernel.errors import ConnectError, RetryError
from chain_kernel.sql import AUDITOR, GAP_READER, OWNER, SEQUENCER_WRITER
from chain_verifier.config import DatabaseSource, TopicSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chainctl.admin import create_chain
from chainctl.database import connected_to
from chainctl.settings import Settings
from gapfill import GapReader, GapReaderConfig
from local_stack.postgres import SUPERUSER
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig, Receiver, ReceiverConfig
from outbox import Consumer, ConsumerConfig, Status
from outbox.consumer.confirm_loop import ConfirmSender
from outbox.consumer.in_hand import ConsumeStart, StartFrom
from outbox.consumer.record_source import DestinationRecords, move_start
from outbox.roles import OUTBOX_WRITER
from sequencer import (
    Order,
    SequencerConfig,
    SequencerTuning,
    TopicIntake,
    TopicIntakeConfig,
    check_intake_topic,
    open_sequencer,
)
from sequencer.stores.kafka import KafkaFrameSink
from tests.deadlines import LONG_SECONDS, deadline
from tests.integration.outbox.conftest import Sender, make_sender
from tests.secured_kafka import PREFIX, RECEIVER, SEQUENCER, TOPIC, SecuredKafka
from tests.sockets import no_socket_left

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from local_stack import PostgresServer
    from outbox.consumer.delivery import Delivery
    from sequencer.intake.topic import TopicIntakeStats

    RoleDsn = Callable[[str], str]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

CHAIN_ID = 7
ROWS = 100

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
async def test_chain_is_sequenced_received_and_verified(
    secured_kafka: SecuredKafka, database: str, role_dsn: RoleDsn, way: str
) -> None:
    leader, reader = configs(secured_kafka, way)
    topic = await make_chain(database, leader)
    frames = KafkaFrameSource(KafkaSourceConfig(kafka=reader, topic=topic))
    gaps = GapReader(GapReaderConfig(database=role_dsn(GAP_READER), chain_id=CHAIN_ID))
    config = SequencerConfig(chain_id=CHAIN_ID, database=role_dsn(SEQUENCER_WRITER), kafka=leader)
    receiver = Receiver(ReceiverConfig(chain_id=CHAIN_ID, name="any"), frames, gaps)
    sent: list[bytes] = []
    received: list[bytes] = []
    async with deadline(), receiver, open_sequencer(config) as sequencer:
        # Rows that were committed before it looked come from the database: go on until some do not.
        while not receiver.stats().rows_live:
            new = [Order(f"client#{n}", b"%d" % n) for n in range(len(sent), len(sent) + ROWS)]
            await sequencer.submit_many(new)
            sent += [order.payload for order in new]
            async for run in receiver:
                received += [event.payload for event in run.events]
                if len(received) == len(sent):
                    break
    assert received == sent
    request = VerifyRequest(
        chain_id=CHAIN_ID,
        sources=(
            DatabaseSource(database=role_dsn(AUDITOR)),
            TopicSource(kafka=reader, topic=topic),
        ),
    )
    report = await asyncio.to_thread(verify_locally, request)
    assert report.is_clean, report.findings
    assert [source.rows for source in report.sources] == [len(sent), len(sent)]


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
    admin = await asyncpg.connect(database)
    found = await admin.fetch("SELECT payload FROM chain_event WHERE chain_id = $1", CHAIN_ID)
    await admin.close()
    assert {row["payload"] for row in found} == {b"one", b"two"}


@pytest.fixture
async def sender(
    postgres_server: PostgresServer,
    database_with: Callable[..., str],
    secured_kafka: SecuredKafka,
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
    async with (
        deadline(),
        sender.relay(kafka=kafka, name=f"{name}.relay"),
        consumer,
    ):
        running = asyncio.create_task(consumer.run(handle))
        async with business.transaction():
            message_id = await outbox.add(business, "clearing", b"trade")
        await sender.until_status(message_id, Status.CONSUMED)
        consumer.stop()
        await running
    assert handled == [b"trade"]


async def test_broker_that_is_away_differs_from_one_that_answers(
    secured_kafka: SecuredKafka,
) -> None:
    """The relay asks so, over a connection like all others."""
    kafka = secured_kafka.login(SEQUENCER)
    assert await is_broker_there(kafka, LONG_SECONDS)
    assert await is_broker_there(secured_kafka.mutual(SEQUENCER), LONG_SECONDS)
    for wrong in (
        KafkaConfig.of(secured_kafka.at("LOGIN")),
        secured_kafka.login(SEQUENCER, sasl_password="wrong"),
        KafkaConfig.of("127.0.0.1:1"),
    ):
        async with no_socket_left():
            assert not await is_broker_there(wrong, LONG_SECONDS)


# -- who may not, is refused ----------------------------------------------------------------------


async def test_receiver_cannot_write(
    secured_kafka: SecuredKafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = fresh_name()
    secured_kafka.make_topic(topic)
    _, reader = configs(secured_kafka, "login")
    sink = KafkaFrameSink(
        SequencerConfig(
            chain_id=1,
            database="postgresql://unused",
            kafka=reader,
            tuning=SequencerTuning(publish_seconds=LONG_SECONDS),
        )
    )
    await sink.start(topic, 0)  # to look is allowed
    with pytest.raises(RetryError) as refused:
        await sink.send([b"forged"])
    assert f"a user 'receiver' that may write to topic {topic} (ACL)" in str(refused.value)
    await sink.close()
    async with started(make_consumer(reader, "looks")) as consumer:
        at = TopicPartition(topic, 0)
        assert await consumer.end_offsets([at]) == {at: 0}


async def test_receiver_without_a_right_to_its_topic_says_so(secured_kafka: SecuredKafka) -> None:
    topic = f"other.{secrets.token_hex(4)}"
    secured_kafka.make_topic(topic)
    source = KafkaFrameSource(
        KafkaSourceConfig(
            kafka=secured_kafka.login(RECEIVER), topic=topic, connect_seconds=LONG_SECONDS
        )
    )
    with pytest.raises(ConnectError, match=f"'receiver' that may .*Describe.* topic {topic}"):
        await source.start()


async def test_consumer_without_a_right_to_its_group_says_so(secured_kafka: SecuredKafka) -> None:
    config = ConsumerConfig(
        name="other",
        topics=(TOPIC,),
        kafka=secured_kafka.login(RECEIVER),
        database="postgresql://unused",
    )
    with pytest.raises(ConnectError, match=r"may commit as group other \(ACL\)"):
        await move_start(config, ConsumeStart(position=StartFrom.END))


# -- an address alone is not enough ---------------------------------------------------------------


@pytest.mark.parametrize("part", ["sequencer", "receiver", "intake", "consumer", "confirms"])
async def test_plaintext_client_is_asked_for_tls_or_a_login(
    secured_kafka: SecuredKafka, part: str
) -> None:
    kafka = secured_kafka.at("LOGIN")
    sequencer = SequencerConfig(chain_id=1, database="postgresql://unused", kafka=kafka)
    consumer = ConsumerConfig(
        name="c", topics=(TOPIC,), kafka=kafka, database="postgresql://unused"
    )
    parts: dict[str, Callable[[], Awaitable[object]]] = {
        "sequencer": lambda: KafkaFrameSink(sequencer).start(TOPIC, 0),
        "receiver": KafkaFrameSource(KafkaSourceConfig(kafka=kafka, topic=TOPIC)).start,
        "intake": lambda: check_intake_topic(TopicIntakeConfig(kafka=kafka, topic=TOPIC)),
        "consumer": DestinationRecords(consumer, lambda _: None).start,
        "confirms": ConfirmSender(consumer).start,
    }
    async with no_socket_left():
        with pytest.raises(ConnectError, match=r"does it ask for TLS or a login\?") as refused:
            await parts[part]()
    assert "\n" not in str(refused.value)


async def test_verifier_without_spark_asks_so_too(secured_kafka: SecuredKafka) -> None:
    source = TopicSource(kafka=secured_kafka.at("LOGIN"), topic=TOPIC)
    request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,), head=1)
    with pytest.raises(ConnectError, match=r"does it ask for TLS or a login\?"):
        await asyncio.to_thread(verify_locally, request)
