"""Records that producers or brokers compress: each reader takes them, or names what it lacks."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import AIOKafkaProducer

from chain_kernel.errors import RetryError, TopicError
from local_stack import KafkaServer
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig
from sequencer import TopicIntakeConfig
from sequencer.intake.reader import TopicReader
from tests.builders.topics import make_topics
from tests.deadlines import deadline

CODECS = ("snappy", "lz4", "zstd")
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


@pytest.mark.parametrize("read", [by_intake, by_receiver])
async def test_records_of_every_codec_are_read(
    kafka_server: KafkaServer, read: Callable[[str, str, Values], Awaitable[None]]
) -> None:
    kafka, values = kafka_server.bootstrap, Values()
    async with deadline():
        await read(kafka, await make_topic(kafka, "producer"), values)
    assert values == VALUES


@pytest.mark.nightly
@pytest.mark.parametrize("read", [by_intake, by_receiver])
async def test_reader_without_the_codec_names_it(
    kafka_server: KafkaServer,
    read: Callable[[str, str, Values], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = kafka_server.bootstrap
    topic = await make_topic(kafka, "zstd")
    monkeypatch.setattr("aiokafka.codec.has_zstd", lambda: False)
    # Receivers read on from the database.
    expected = RetryError if read is by_receiver else TopicError
    with pytest.raises(expected, match=f"topic {topic} was 'zstd', expected .*install cramjam"):
        async with deadline():
            await read(kafka, topic, [])
