"""Records that producers or brokers compress: each reader takes them, or names what it lacks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest
from aiokafka import AIOKafkaProducer

from chain_kernel.errors import RetryError, TopicError
from chain_verifier.config import TopicSource
from chain_verifier.published_reader import PublishedReader
from local_stack import KafkaServer
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig
from outbox.consumer.config import ConsumerConfig
from outbox.consumer.in_hand import ConsumeStart, StartFrom
from outbox.consumer.record_source import DestinationRecords
from sequencer import SequencerConfig, TopicIntakeConfig
from sequencer.intake.reader import TopicReader
from sequencer.stores.kafka import KafkaFrameSink
from tests.builders.topics import make_topics
from tests.deadlines import deadline

CODECS = ("gzip", "snappy", "lz4", "zstd")
VALUES = [f"{codec}: {'order ' * 9}".encode() for codec in CODECS]

Values = list[bytes | None]


async def make_topic(kafka: str, compression: str) -> str:
    """Make a topic whose records the broker compresses so; `producer`: as they are sent."""
    name = f"compressed-{compression}-{secrets.token_hex(4)}"
    await make_topics(kafka, name, configs={"compression.type": compression})
    return name


async def publish(kafka: str, topic: str) -> None:
    """Send one record by each codec, as a producer that is set to it; or the broker compresses."""
    by_producer = topic.startswith("compressed-producer")
    for codec, value in zip(CODECS, VALUES, strict=True):
        producer = AIOKafkaProducer(
            bootstrap_servers=kafka, compression_type=codec if by_producer else None
        )
        await producer.start()
        try:
            await producer.send_and_wait(topic, value, partition=0)
        finally:
            await producer.stop()


async def by_intake(kafka: str, topic: str, values: Values) -> None:
    await publish(kafka, topic)
    reader = TopicReader(TopicIntakeConfig(kafka=kafka, topic=topic))
    try:
        await reader.open()
        await reader.seek({0: 0})
        while len(values) < len(VALUES):
            records, _ = (await reader.records(100, 1.0)).get(0, ((), 0))
            values += [record.value for record in records]
    finally:
        await reader.close()


async def by_receiver(kafka: str, topic: str, values: Values) -> None:
    async with KafkaFrameSource(KafkaSourceConfig(kafka=kafka, topic=topic)) as source:
        await publish(kafka, topic)
        await take_all(source, values)


async def take_all(source: KafkaFrameSource, values: Values) -> None:
    while len(values) < len(VALUES):
        values += await source.records(1.0)


async def by_leader(kafka: str, topic: str, values: Values) -> None:
    await publish(kafka, topic)
    config = SequencerConfig(chain_id=1, database="postgresql://unused", kafka=kafka)
    values += await KafkaFrameSink(config).last_records(topic, 0, len(VALUES))


async def by_consumer(kafka: str, topic: str, values: Values) -> None:
    await publish(kafka, topic)
    config = ConsumerConfig(
        name=topic,
        topics=(topic,),
        kafka=kafka,
        database="postgresql://unused",
        start=ConsumeStart(position=StartFrom.FIRST),
    )
    source = DestinationRecords(config, lambda _: None)
    await source.start()
    try:
        source.begin_at({}, (topic,))
        while len(values) < len(VALUES):
            values += [record.value for record in await source.records(1.0, 100)]
    finally:
        await source.close()


async def by_local_verifier(kafka: str, topic: str, values: Values) -> None:
    await publish(kafka, topic)

    def read() -> None:
        with closing(PublishedReader(TopicSource(kafka=kafka, topic=topic), topic, 0)) as reader:
            values.extend(record.value for page in reader.pages() for record in page)

    await asyncio.to_thread(read)


READERS = [by_intake, by_receiver, by_leader, by_consumer, by_local_verifier]

Read = Callable[[str, str, Values], Awaitable[None]]


@pytest.mark.parametrize("read", READERS)
async def test_records_of_every_codec_are_read(kafka_server: KafkaServer, read: Read) -> None:
    kafka = kafka_server.bootstrap
    for compression in ("producer", *CODECS):
        values = Values()
        async with deadline():
            await read(kafka, await make_topic(kafka, compression), values)
        assert values == VALUES, compression


@pytest.mark.parametrize("read", READERS)
async def test_reader_without_the_codec_names_it(
    kafka_server: KafkaServer, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = kafka_server.bootstrap
    topic = await make_topic(kafka, "zstd")
    monkeypatch.setattr("aiokafka.codec.has_zstd", lambda: False)
    # Receivers read on from the database, leaders lead without that look.
    expected = RetryError if read in (by_receiver, by_leader) else TopicError
    with pytest.raises(expected, match=f"topic {topic} was 'zstd', expected .*install cramjam"):
        async with deadline():
            await read(kafka, topic, [])


async def test_receiver_goes_on_after_a_record_that_it_cannot_decode(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, found = kafka_server.bootstrap, Values()
    topic = await make_topic(kafka, "lz4")
    async with KafkaFrameSource(KafkaSourceConfig(kafka=kafka, topic=topic)) as source, deadline():
        with monkeypatch.context() as without:
            without.setattr("aiokafka.codec.has_lz4", lambda: False)
            await publish(kafka, topic)
            with pytest.raises(RetryError, match="lz4"):
                await take_all(source, [])
        await publish(kafka, topic)
        await take_all(source, found)
    assert found == VALUES
