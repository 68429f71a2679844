"""A broker that makes topics by itself, as is the default: none of ours asks for one."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from unittest.mock import AsyncMock

import pytest

from chain_kernel.errors import ConnectError, RetryError, TopicError
from local_stack import KafkaServer
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig
from outbox.callback.callback_service import CallbackIntake, CallbackService
from outbox.callback.config import CallbackConfig
from outbox.consumer.config import ConsumerConfig
from outbox.consumer.record_source import DestinationRecords
from outbox.sender.message_sender import MISSING, MessageSender
from sequencer import SequencerConfig, TopicIntakeConfig, check_intake_topic
from sequencer.stores.kafka import KafkaFrameSink
from tests.deadlines import deadline
from tests.opened import administering
from tests.tuned import tuned


async def by_intake(kafka: str, topic: str) -> None:
    with pytest.raises(TopicError, match=f"'{topic}', expected a topic that exists"):
        await check_intake_topic(TopicIntakeConfig(kafka=kafka, topic=topic))


async def by_leader(kafka: str, topic: str) -> None:
    config = SequencerConfig(chain_id=1, database="postgresql://unused", kafka=kafka)
    sink = KafkaFrameSink(tuned(config, connect_seconds=1.0))
    with pytest.raises((RetryError, ConnectError)):
        await sink.last_records(topic, 0, 1)
    with pytest.raises(TopicError, match=f"{topic}.*exist"):
        await sink.start(topic, 0)
    await sink.close()


async def by_receiver(kafka: str, topic: str) -> None:
    with pytest.raises(TopicError, match=f"{topic}.*exist"):
        async with KafkaFrameSource(KafkaSourceConfig(kafka=kafka, topic=topic)):
            pass


async def by_consumer(kafka: str, topic: str) -> None:
    config = ConsumerConfig(
        name=topic, topics=(topic,), kafka=kafka, database="postgresql://unused"
    )
    source = DestinationRecords(config, lambda _: None)
    await source.start()
    try:
        source.begin_at({}, (topic,))
        for _ in range(3):
            assert await source.records(0.5, 100) == []
    finally:
        await source.close()


async def by_callback_service(kafka: str, topic: str) -> None:
    confirms = f"{topic}-confirms"
    config = CallbackConfig(
        database="postgresql://unused", kafka=kafka, check_topic=topic, confirm_topics=(confirms,)
    )
    intake = CallbackIntake(config, AsyncMock(spec=CallbackService))
    task = asyncio.ensure_future(intake.run())
    while len(intake._topic_errors.reasons) < 2:
        await intake._topic_errors.changed.wait()
        intake._topic_errors.changed.clear()
    task.cancel()
    await asyncio.wait([task])
    assert intake._topic_errors.reasons == {topic: MISSING, confirms: MISSING}


async def by_relay(kafka: str, topic: str) -> None:
    sender = MessageSender(kafka, 5.0)
    try:
        trouble = await sender.look_at(topic)
    finally:
        await sender.close()
    assert trouble is not None
    assert MISSING in str(trouble)


@pytest.mark.merge
@pytest.mark.parametrize(
    "look", [by_intake, by_leader, by_receiver, by_consumer, by_callback_service, by_relay]
)
async def test_topic_that_is_missing_stays_missing(
    kafka_to_break: KafkaServer, look: Callable[[str, str], Awaitable[None]]
) -> None:
    kafka, topic = kafka_to_break.bootstrap, f"nowhere-{secrets.token_hex(4)}"
    async with deadline():
        await look(kafka, topic)
    async with administering(kafka) as admin:
        assert topic not in await admin.list_topics()
