"""Records as producers, brokers and disks leave them: each reader takes what can be read, in order,
and names what cannot.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from chain_kernel.errors import RetryError, TopicError
from chain_verifier.config import TopicSource
from chain_verifier.sources.published_reader import PublishedReader
from local_stack import KafkaServer
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig
from outbox import StartAt
from outbox.consumer.config import ConsumerConfig
from outbox.consumer.record_source import DestinationRecords
from sequencer import SequencerConfig, TopicIntakeConfig
from sequencer.intake.reader import TopicReader
from sequencer.stores.kafka import KafkaFrameSink
from tests.builders.topics import StrangeName, damage_batch, let_names_be_bytes, make_topics
from tests.deadlines import deadline

CODECS = ("gzip", "snappy", "lz4", "zstd")
VALUES = [f"{codec}: {'order ' * 9}".encode() for codec in CODECS]

Values = list[bytes | None]


async def make_topic(kafka: str, compression: str) -> str:
    """Make a topic whose records the broker compresses so; `producer`: as they are sent."""
    name = f"compressed-{compression}-{secrets.token_hex(4)}"
    await make_topics(kafka, name, configs={"compression.type": compression})
    return name


HEADER = "x"


async def publish(kafka: str, topic: str) -> None:
    """Send one record by each codec, as a producer that is set to it; or the broker compresses."""
    by_producer = topic.startswith("compressed-producer")
    for codec, value in zip(CODECS, VALUES, strict=True):
        async with AIOKafkaProducer(
            bootstrap_servers=kafka, compression_type=codec if by_producer else None
        ) as producer:
            headers = [(HEADER, b"1")] if value == VALUES[2] else []
            await producer.send_and_wait(topic, value, partition=0, headers=headers)


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
        start_at=StartAt("beginning"),
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
    named = f"topic {topic}, partition 0, offset 0, was 'zstd', expected .*install cramjam"
    with pytest.raises(expected, match=named):
        async with deadline():
            await read(kafka, topic, [])


@pytest.mark.parametrize("read", READERS)
async def test_name_of_a_header_need_not_be_text(
    kafka_server: KafkaServer, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_names_be_bytes(monkeypatch)
    monkeypatch.setattr(f"{__name__}.HEADER", StrangeName("x"))
    kafka = kafka_server.bootstrap
    for compression in ("producer", "uncompressed", "zstd"):
        values = Values()
        async with deadline():
            await read(kafka, await make_topic(kafka, compression), values)
        assert values == VALUES, compression


@pytest.mark.parametrize(
    ("is_sealed", "said"),
    [(False, "damaged since it was sent: its checksum is wrong"), (True, "sent like that: ")],
)
@pytest.mark.parametrize("read", [by_intake, by_consumer, by_local_verifier, by_leader])
async def test_unreadable_record_is_named_after_all_that_comes_before_it(
    kafka_server: KafkaServer,
    read: Read,
    monkeypatch: pytest.MonkeyPatch,
    is_sealed: bool,
    said: str,
) -> None:
    kafka, values = kafka_server.bootstrap, Values()
    topic = await make_topic(kafka, "producer")
    await publish(kafka, topic)
    damage_batch(kafka_server, topic, 2, is_sealed=is_sealed)
    monkeypatch.setattr(f"{__name__}.publish", already)
    named = f"record of topic {topic}, partition 0, offset 2 was '{said}"
    with pytest.raises(RetryError if read is by_leader else TopicError, match=named):
        async with deadline():
            await read(kafka, topic, values)
    assert values == ([] if read is by_leader else VALUES[:2])


async def already(*_: object) -> None:
    """The records are there."""


async def test_damage_in_one_partition_loses_nothing_of_the_others(
    kafka_server: KafkaServer,
) -> None:
    kafka, values = kafka_server.bootstrap, list[bytes | None]()
    topic = f"damaged-{secrets.token_hex(4)}"
    await make_topics(kafka, topic, partitions=2)
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        for number in range(40):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % 2)
    damage_batch(kafka_server, topic, 3)
    reader = TopicReader(TopicIntakeConfig(kafka=kafka, topic=topic))
    try:
        async with deadline():
            await reader.open()
            await reader.seek({0: 0, 1: 0})
            with pytest.raises(TopicError, match="partition 0, offset 3 was 'damaged"):
                await take_from(reader, values)
    finally:
        await reader.close()
    taken = [int(value or b"-1") for value in values]
    evens = [number for number in taken if number % 2 == 0]
    assert evens == [0, 2, 4], "what comes before, and nothing after"
    odds = [number for number in taken if number % 2]
    assert odds == list(range(1, 2 * len(odds), 2)), "each that was taken, once and in order"
    assert len(odds) >= 2


async def take_from(reader: TopicReader, values: Values) -> None:
    while True:
        found = await reader.records(4, 1.0)
        values += [record.value for records, _ in found.values() for record in records]


async def test_receiver_goes_on_after_a_damaged_record(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, found = kafka_server.bootstrap, Values()
    topic = await make_topic(kafka, "producer")
    await publish(kafka, topic)
    damage_batch(kafka_server, topic, 2)
    # It begins at the live end: here the end is that of the time before.
    ends = AIOKafkaConsumer.beginning_offsets
    monkeypatch.setattr(AIOKafkaConsumer, "end_offsets", ends)
    async with KafkaFrameSource(KafkaSourceConfig(kafka=kafka, topic=topic)) as source, deadline():
        with pytest.raises(RetryError, match="offset 2 was 'damaged since it was sent: its checks"):
            await take_all(source, found)
        assert found == VALUES[:2]
        found += await source.records(1.0)
    assert found == [*VALUES[:2], VALUES[3]]


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
