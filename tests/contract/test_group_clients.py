"""What the outbox expects of Kafka's clients, of those in memory and of aiokafka's own."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError

from chain_kernel.clients.kafka import make_consumer, make_producer
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.testing.virtual_loop import run_virtual
from outbox.testing.servers.kafka import Broker, MemoryConsumer, MemoryProducer, asked_at_once
from tests.builders.topics import make_topics
from tests.deadlines import deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

RECORD: dict[str, Any] = {
    "timestamp": 1_600_000_000_000, "key": b"k", "headers": [("h", b"v")],
}  # fmt: skip
PLACES = [TopicPartition("t", number) for number in range(4)]


class Memory:
    """Brokers in memory."""

    def __init__(self) -> None:
        self._broker: Broker | None = None

    async def make(self, topic: str) -> None:
        self._broker = Broker(Random(0))
        self._broker.topics[topic] = [[] for _ in PLACES]

    def producer(self) -> Any:
        assert self._broker is not None
        return MemoryProducer(self._broker)

    def consumer(self, group: str, reset: str = "none") -> Any:
        assert self._broker is not None
        return MemoryConsumer(self._broker, asked_at_once, (), group, reset)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        run_virtual(story)


class Kafka:
    """The real ones."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._config = KafkaConfig.of(bootstrap)

    async def make(self, topic: str) -> None:
        await make_topics(self._bootstrap, topic, partitions=len(PLACES))

    def producer(self) -> Any:
        return make_producer(self._config, "test", max_batch_size=200)

    def consumer(self, group: str, reset: str = "none") -> Any:
        return make_consumer(self._config, "test", group_id=group, auto_offset_reset=reset)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        asyncio.run(story)


@pytest.fixture(params=["memory", "kafka"])
def kafka(request: pytest.FixtureRequest) -> Iterator[Memory | Kafka]:
    if request.param == "memory":
        yield Memory()
    else:
        yield Kafka(request.getfixturevalue("kafka_server").bootstrap)


async def until(holds: Callable[[], Any]) -> None:
    async with deadline():
        while not holds():  # noqa: ASYNC110 - nothing shows when the brokers have done it
            await asyncio.sleep(0.05)


async def sent(kafka: Memory | Kafka, topic: str, count: int) -> None:
    """Send to each partition, in batches as large as they may be; the offsets follow each other."""
    producer = kafka.producer()
    await producer.start()
    for number in range(len(PLACES)):
        left, expected = list(range(count)), 0
        while left:
            batch, size = producer.create_batch(), 0
            while left and batch.append(**RECORD, value=b"%d" % left[0]) is not None:
                left.pop(0)
                size += 1
            ack = await producer.send_batch(batch, topic, partition=number)
            assert (await ack).offset == expected
            expected += size
        assert expected == count
        assert number in producer.client.cluster.partitions_for_topic(topic)
    await producer.stop()


class Commits(ConsumerRebalanceListener):  # type: ignore[misc]
    """Commits what it has while its partitions go."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.revoked: list[set[TopicPartition]] = []

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.revoked.append(set(revoked))
        if revoked:
            await self._consumer.commit(dict.fromkeys(revoked, 3))

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Nothing."""


def test_members_of_a_group_share_its_partitions_and_go_on_where_it_has_committed(
    kafka: Memory | Kafka, orderchain_fresh_name: str
) -> None:
    topic = orderchain_fresh_name

    async def story() -> None:
        await kafka.make(topic)
        await sent(kafka, topic, 10)
        first, second = kafka.consumer(topic, "earliest"), kafka.consumer(topic, "earliest")
        commits = Commits(first)
        await first.start()
        first.subscribe([topic], listener=commits)
        await until(lambda: len(first.assignment()) == 4)
        place = min(first.assignment())
        records: list[Any] = []
        async with deadline():
            while len(records) < 40:
                for some in (await first.getmany(timeout_ms=100, max_records=7)).values():
                    records += some
        values = [record.value for record in records if record.partition == place.partition]
        assert values == [b"%d" % number for number in range(10)]
        assert (records[0].key, records[0].headers) == (b"k", (("h", b"v"),))
        await second.start()
        second.subscribe([topic])
        await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
        assert not first.assignment() & second.assignment()
        assert len(commits.revoked[-1]) == 4, "all of them go, and some of them come back"
        # Committed as they went: each goes on there.
        found = await first._coordinator.fetch_committed_offsets(set(first.assignment()))
        assert {each.offset for each in found.values()} == {3}
        await first.stop()
        await until(lambda: len(second.assignment()) == 4)
        offsets: list[int] = []
        async with deadline():
            while len(offsets) < 28:
                got = await second.getmany(timeout_ms=100, max_records=50)
                offsets += [record.offset for some in got.values() for record in some]
        assert min(offsets) == 3
        assert set((await second.end_offsets(second.assignment())).values()) == {10}
        assert set((await second.beginning_offsets(second.assignment())).values()) == {0}
        await second.stop()

    kafka.run(story())


def test_reader_without_an_offset_or_beyond_the_end_is_not_moved_silently(
    kafka: Memory | Kafka, orderchain_fresh_name: str
) -> None:
    topic = orderchain_fresh_name

    async def story() -> None:
        await kafka.make(topic)
        await sent(kafka, topic, 2)
        consumer = kafka.consumer(topic)
        await consumer.start()
        consumer.subscribe([topic])
        await until(lambda: len(consumer.assignment()) == 4)
        with pytest.raises(NoOffsetForPartitionError):
            await read(consumer)
        for place in consumer.assignment():
            consumer.seek(place, 5)
        with pytest.raises(OffsetOutOfRangeError):
            await read(consumer)
        await consumer.stop()

    async def read(consumer: Any) -> None:
        async with deadline():
            while True:
                await consumer.getmany(timeout_ms=100, max_records=5)

    kafka.run(story())
