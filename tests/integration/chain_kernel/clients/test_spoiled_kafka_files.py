"""Certificates for Kafka that cannot be read for a while end no service that runs."""

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

import outbox
from chain_kernel.clients.kafka import close_client, cut_connection, make_consumer, start_client
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import connecting, is_broker_there
from chain_kernel.errors import ConnectError, RetryError
from chain_kernel.sql import OWNER, SEQUENCER_WRITER
from chainctl.admin import create_chain
from chainctl.database import connected_to
from local_stack import PostgresServer
from matcher_receiver.config import KafkaSourceConfig
from matcher_receiver.stores.kafka import KafkaFrameSource
from outbox import ConsumerConfig, Status
from outbox.callback.callback_service import CallbackIntake
from outbox.callback.config import CallbackConfig
from outbox.consumer.record_source import DestinationRecords
from outbox.roles import OUTBOX_WRITER
from sequencer import Ack, Sequencer, SequencerConfig, TopicIntakeConfig, open_sequencer
from sequencer.intake.joint import JointConsumers
from sequencer.intake.reader import TopicReader
from tests.builders.created_chain import Chain
from tests.certificates import Files
from tests.deadlines import deadline, until
from tests.integration.outbox.conftest import Sender, make_sender
from tests.log_lines import log_lines
from tests.secured_kafka import PREFIX, SEQUENCER, TOPIC, SecuredKafka, unsigned_token
from tests.spoiled_files import SPOILS, copied, replaced, spoiled
from tests.tuned import tuned

RoleDsn = Callable[[str], str]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

FIELDS = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")
OUTAGES = RetryError, ConnectError
"""What a part that has begun waits for."""


def fresh_name() -> str:
    return f"{PREFIX}{secrets.token_hex(6)}"


@pytest.fixture
def files(secured_kafka: SecuredKafka, tmp_path: Path) -> Files:
    """A client's certificate and key, which this test alone has."""
    return copied(secured_kafka.authority.client(SEQUENCER), tmp_path / "client")


@pytest.fixture
def kafka(secured_kafka: SecuredKafka, files: Files, tmp_path: Path) -> KafkaConfig:
    authority = shutil.copy2(secured_kafka.authority.path, tmp_path / "authority.pem")
    return secured_kafka.mutual(SEQUENCER, files, ssl_cafile=str(authority))


@pytest.fixture
async def chain(database: str, role_dsn: RoleDsn, kafka: KafkaConfig) -> Chain:
    topic = fresh_name()
    async with connected_to(database, 10.0, OWNER) as connection:
        await create_chain(connection, kafka, 1, topic=topic)
    config = SequencerConfig(chain_id=1, database=role_dsn(SEQUENCER_WRITER), kafka=kafka)
    config = tuned(config, publish_seconds=2.0, heartbeat_seconds=0.1)
    return Chain(chain_id=1, topic=topic, database=database, config=config)


async def until_published(sequencer: Sequencer, ack: Ack) -> None:
    await until(lambda: sequencer.stats().head_published == ack.id)


@contextmanager
def frozen(kafka: SecuredKafka) -> Iterator[None]:
    kafka.server.freeze()
    try:
        yield
    finally:
        kafka.server.thaw()


@pytest.mark.parametrize("how", SPOILS)
@pytest.mark.parametrize("field", FIELDS)
async def test_leader_goes_on_and_publishes_later(
    secured_kafka: SecuredKafka, chain: Chain, kafka: KafkaConfig, field: str, how: str
) -> None:
    path = Path(getattr(kafka, field))
    with log_lines() as log:
        async with deadline(), open_sequencer(chain.config) as sequencer:
            await until_published(sequencer, await sequencer.submit("a", b"one"))
            with spoiled(path, how):
                with frozen(secured_kafka):  # it fails, and makes a new producer
                    await log.until("no acknowledgement within 2 s")
                await log.until(f"{field} was '{path}'")
                ack = await sequencer.submit("b", b"two")
            await until_published(sequencer, ack)
    assert [row.key for row in await chain.rows()] == ["a", "b"]
    first = [line for line in log.naming(str(path)) if not line.endswith("times)")]
    assert len(first) == 1, log.lines


async def test_leader_whose_tokens_are_cancelled_goes_on_and_publishes_later(
    secured_kafka: SecuredKafka, chain: Chain
) -> None:
    draw = AsyncMock(side_effect=lambda: unsigned_token(SEQUENCER))
    config = replace(chain.config, kafka=secured_kafka.by_tokens(draw))
    with log_lines() as log:
        async with deadline(), open_sequencer(config) as sequencer:
            await until_published(sequencer, await sequencer.submit("a", b"one"))
            draw.side_effect = asyncio.CancelledError
            with frozen(secured_kafka):  # it fails, and makes a new producer
                await log.until("no acknowledgement within 2 s")
            await log.until("sasl_token: it raised CancelledError, though its task was not")
            ack = await sequencer.submit("b", b"two")
            draw.side_effect = lambda: unsigned_token(SEQUENCER)
            await until_published(sequencer, ack)
    assert [row.key for row in await chain.rows()] == ["a", "b"]


@pytest.mark.parametrize("field", FIELDS)
async def test_look_for_a_broker_meets_a_file_that_is_gone_as_an_outage(
    kafka: KafkaConfig, field: str
) -> None:
    with spoiled(Path(getattr(kafka, field)), "away"):
        assert not await is_broker_there(kafka, 5.0)
    assert await is_broker_there(kafka, 5.0)


async def test_slow_broker_is_one_for_a_retry_although_its_cause_cannot_be_looked_for(
    kafka: KafkaConfig, files: Files
) -> None:
    with spoiled(files.key, "away"), pytest.raises(RetryError, match="slow"):
        async with connecting(kafka, 5.0):
            raise TimeoutError("slow")


async def until_refused(reader: TopicReader) -> None:
    while True:
        await reader.records(1, 1.0)


async def test_joint_intake_meets_a_file_that_is_gone_as_an_outage(
    secured_kafka: SecuredKafka, kafka: KafkaConfig, files: Files
) -> None:
    topic = fresh_name()
    secured_kafka.make_topic(topic)
    config = TopicIntakeConfig(kafka=kafka, topic=topic)
    joint = JointConsumers(config)
    reader = TopicReader(config, joint)
    async with deadline():
        await reader.open()
        with spoiled(files.certificate, "away"):
            await reader.seek({0: 0})
            with pytest.raises(RetryError, match="ssl_certfile was"):
                await until_refused(reader)
        await reader.open()
        await reader.seek({0: 0})
        await reader.records(1, 0.1)
        await reader.close()
        await joint.close()


Reader = tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]
"""How a reader of a topic connects, and how it closes: while it runs it does both repeatedly."""


def intake(kafka: KafkaConfig, topic: str) -> Reader:
    reader = TopicReader(TopicIntakeConfig(kafka=kafka, topic=topic))
    return reader.open, reader.close


def receiver(kafka: KafkaConfig, topic: str) -> Reader:
    source = KafkaFrameSource(KafkaSourceConfig(kafka=kafka, topic=topic))
    return source.start, source.close


def consumer(kafka: KafkaConfig, topic: str) -> Reader:
    config = ConsumerConfig(name=topic, topics=(topic,), kafka=kafka, database="postgresql://h/d")
    records = DestinationRecords(config, lambda _: None)
    return records.start, records.close


def callback(kafka: KafkaConfig, topic: str) -> Reader:
    config = CallbackConfig(
        database="postgresql://h/d", kafka=kafka, check_topic=topic, confirm_topics=(topic,)
    )
    nothing: Any = None  # a look at the topics, with a client of its own, is before all else

    async def close() -> None:
        """It has closed its client."""

    return CallbackIntake(config, nothing)._are_topics_there, close


@pytest.mark.parametrize("make", [intake, receiver, consumer, callback])
async def test_reader_meets_a_file_that_is_gone_as_an_outage(
    secured_kafka: SecuredKafka,
    kafka: KafkaConfig,
    files: Files,
    make: Callable[[KafkaConfig, str], Reader],
) -> None:
    topic = fresh_name()
    secured_kafka.make_topic(topic)
    connect, close = make(kafka, topic)
    async with deadline():
        for how in SPOILS:
            await connect()
            await close()
            with spoiled(files.certificate, how), pytest.raises(OUTAGES, match="ssl_certfile"):
                await connect()
        await connect()
        await close()


async def test_client_that_runs_takes_a_new_certificate_at_its_next_connect(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    """The first one may expire meanwhile: a receiver has the same client for months."""
    files = copied(secured_kafka.authority.client("stranger"), tmp_path / "client")
    consumer = make_consumer(secured_kafka.mutual("stranger", files), "test")
    async with deadline():
        await start_client(consumer)
        assert TOPIC not in await consumer.topics()  # a stranger sees none
        with spoiled(files.key, "half written"):
            cut(consumer)
            assert TOPIC not in await consumer.topics()  # by what it has
        replaced(files, secured_kafka.authority.client(SEQUENCER))
        cut(consumer)
        assert TOPIC in await consumer.topics()
        await close_client(consumer, 5.0)


async def test_client_that_runs_takes_a_new_password_at_its_next_connect(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    user, file = f"user-{secrets.token_hex(4)}", tmp_path / "password"
    file.write_text("the first")
    secured_kafka.set_password(user, "the first")
    config = secured_kafka.login(
        SEQUENCER, sasl_username=user, sasl_password="", sasl_password_file=str(file)
    )
    async with deadline():
        await until(lambda: is_broker_there(config, 5.0))
        consumer = make_consumer(config, "test")
        await start_client(consumer)
        secured_kafka.set_password(user, "the second")
        file.write_text("the second")
        await until(lambda: is_broker_there(config, 5.0))
        cut(consumer)
        await consumer.topics()
        with spoiled(file, "away"):
            cut(consumer)
            await consumer.topics()
        await close_client(consumer, 5.0)


def cut(client: Any) -> None:
    for connection in list(client._client._conns.values()):
        cut_connection(connection)


@pytest.fixture
async def sender(
    postgres_server: PostgresServer, database_with: Callable[..., str], secured_kafka: SecuredKafka
) -> AsyncIterator[Sender]:
    plain = secured_kafka.server.bootstrap
    async for made in make_sender(postgres_server, database_with("outbox", "inbox"), plain):
        yield made


@pytest.mark.parametrize("how", SPOILS)
async def test_relay_waits_as_for_a_broker_that_is_away(
    secured_kafka: SecuredKafka, sender: Sender, kafka: KafkaConfig, how: str
) -> None:
    name = fresh_name()
    destination = await sender.set_up(topic=name, confirm="none")
    business = await sender.connect(OUTBOX_WRITER)
    path = Path(kafka.ssl_certfile)
    with log_lines() as log:
        async with deadline(), sender.relay(kafka=kafka, name=f"{name}.relay") as relay:
            with spoiled(path, how):
                async with business.transaction():
                    message_id = await outbox.add(business, "clearing", b"trade")
                await outbox.wake(business)
                await log.until("the broker is away, nothing is sent meanwhile", str(path))
                assert relay.why_not_ready() == "relay: the broker is away"
            await sender.until_status(message_id, Status.CONFIRMED)
    assert await sender.sent(destination) == [message_id]
    assert not log.naming("a round of sends")
