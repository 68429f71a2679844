"""Intakes that share a consumer: what befalls the topic of one stops no other."""

import re
import secrets
from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from chain_kernel.errors import OrderchainError, RetryError, TopicError
from local_stack import KafkaServer
from sequencer import TopicIntakeConfig
from sequencer.intake import joint
from sequencer.intake.joint import JointConsumers
from sequencer.intake.reader import TopicReader
from tests.builders.topics import damage_batch, make_topics
from tests.deadlines import deadline
from tests.opened import administering

TOPICS = 4
FETCH_BYTES = 2**16


class Readers:
    """Readers of several topics with one consumer, and a producer for them."""

    def __init__(self, kafka: KafkaServer) -> None:
        self.kafka = kafka
        run = secrets.token_hex(4)
        self.topics = [f"joint-{run}-{number}" for number in range(TOPICS)]
        self.configs = [
            TopicIntakeConfig(kafka=kafka.bootstrap, topic=topic, fetch_bytes=FETCH_BYTES)
            for topic in self.topics
        ]
        self.joint = JointConsumers(self.configs[0])
        self.readers = [TopicReader(config, self.joint) for config in self.configs]
        self.producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)
        self.taken: list[list[bytes | None]] = [[] for _ in self.topics]

    async def start(self) -> None:
        await make_topics(self.kafka.bootstrap, *self.topics)
        await self.producer.start()
        for number in range(TOPICS):
            await self.begin(number)

    async def begin(self, number: int) -> None:
        """Open a reader after what was taken."""
        async with deadline():
            while True:
                try:
                    await self.readers[number].open()
                    await self.readers[number].seek({0: len(self.taken[number])})
                    break
                except OrderchainError:
                    pass  # the broker learns of a topic a moment later

    async def send(self, number: int, *values: bytes) -> None:
        for value in values:
            await self.producer.send_and_wait(self.topics[number], value, partition=0)

    async def take(self, number: int) -> None:
        """Take what comes next, if anything does."""
        for records, end in (await self.readers[number].records(1_000, 0.5)).values():
            self.taken[number] += [record.value for record in records]
            assert end == len(self.taken[number])

    async def until_taken(self, number: int, *values: bytes) -> None:
        async with deadline():
            while self.taken[number] != list(values):
                await self.take(number)

    async def assert_others_go_on(self) -> None:
        """Send and take for all but the first, with the places that they have had all the time."""
        for number in range(1, TOPICS):
            await self.send(number, b"one", b"two")
            await self.until_taken(number, b"one", b"two")

    async def until_refused(self, error: type[Exception], match: str) -> None:
        async def refused() -> None:
            while True:
                try:
                    await self.take(0)
                except RetryError as raised:  # a starved broker answers late
                    if issubclass(error, RetryError) and re.search(match, str(raised)):
                        raise
                    await self.begin(0)

        async with deadline():
            with pytest.raises(error, match=match):
                await refused()

    async def manage(self, act: Callable[[AIOKafkaAdminClient], object]) -> None:
        async with administering(self.kafka.bootstrap) as admin:
            await act(admin)  # type: ignore[misc]

    async def close(self) -> None:
        for reader in self.readers:
            await reader.close()
        await self.joint.close()
        await self.producer.stop()


@pytest.fixture
async def readers(kafka_server: KafkaServer) -> AsyncIterator[Readers]:
    readers = Readers(kafka_server)
    await readers.start()
    yield readers
    await readers.close()


async def test_two_readers_of_one_topic_read_each_from_its_own_place(readers: Readers) -> None:
    await readers.send(0, b"one", b"two", b"three")
    await readers.until_taken(0, b"one", b"two", b"three")
    again = TopicReader(readers.configs[0], readers.joint)
    await again.open()
    await again.seek({0: 1})
    taken: list[bytes | None] = []
    async with deadline():
        while len(taken) < 2:
            for records, _ in (await again.records(1_000, 0.5)).values():
                taken += [record.value for record in records]
    assert taken == [b"two", b"three"]
    await readers.send(0, b"four")
    await readers.until_taken(0, b"one", b"two", b"three", b"four")
    await again.close()


async def test_orders_of_an_open_transaction_come_after_the_end_that_a_first_start_finds(
    readers: Readers,
) -> None:
    sender = AIOKafkaProducer(
        bootstrap_servers=readers.kafka.bootstrap, transactional_id=secrets.token_hex(4)
    )
    await sender.start()
    await sender.begin_transaction()
    await sender.send_and_wait(readers.topics[0], b"open", partition=0)
    assert (await readers.readers[0].open())[0] == (0, 0)
    await sender.abort_transaction()
    await sender.stop()


async def test_place_goes_past_the_end_of_a_transaction_while_another_topic_is_busy(
    readers: Readers,
) -> None:
    """Once the log is emptied by its retention, a place before that end would be lost."""
    sender = AIOKafkaProducer(
        bootstrap_servers=readers.kafka.bootstrap, transactional_id=secrets.token_hex(4)
    )
    await sender.start()
    async with sender.transaction():
        await sender.send_and_wait(readers.topics[0], b"order", partition=0)
    await sender.stop()
    ends: dict[int, int] = {}
    values: list[bytes] = []
    async with deadline():
        while ends.get(0) != 2:  # the order, and the end of its transaction
            values.append(b"%d" % len(values))
            await readers.send(1, values[-1])
            await readers.until_taken(1, *values)
            ends |= {at: end for at, (_, end) in (await readers.readers[0].records(9, 0.0)).items()}


async def test_deleted_topic_is_met_by_its_reader_alone(readers: Readers) -> None:
    await readers.manage(lambda admin: admin.delete_topics([readers.topics[0]]))
    await readers.until_refused(RetryError, "its partitions are|not host this topic")
    await readers.assert_others_go_on()
    async with deadline():
        while True:
            try:
                await readers.readers[0].open()
            except TopicError:
                break
            except RetryError:
                pass


async def test_record_that_cannot_be_decoded_is_met_by_its_reader_alone(readers: Readers) -> None:
    await readers.readers[0].close()
    await readers.send(0, b"one", b"two", b"three")
    damage_batch(readers.kafka, readers.topics[0], 2)
    await readers.begin(0)
    await readers.until_refused(TopicError, "offset 2")
    assert readers.taken[0] == [b"one", b"two"]
    await readers.assert_others_go_on()


async def test_records_that_are_gone_are_met_by_their_reader_alone(readers: Readers) -> None:
    await readers.readers[0].close()
    await readers.send(0, b"one", b"two", b"three")
    gone = {TopicPartition(readers.topics[0], 0): RecordsToDelete(before_offset=2)}
    await readers.manage(lambda admin: admin.delete_records(gone))
    await readers.begin(0)
    await readers.until_refused(RetryError, "OffsetOutOfRange|out of range")
    await readers.assert_others_go_on()


async def test_reader_that_takes_nothing_holds_up_no_other(readers: Readers) -> None:
    values = [b"%05d" % number + b"x" * 10_000 for number in range(60)]  # 10 times the bound
    await readers.send(0, *values)
    await readers.assert_others_go_on()
    await readers.until_taken(0, *values)


async def test_readers_that_leave_and_come_back_move_no_other(readers: Readers) -> None:
    await readers.send(1, b"before")
    await readers.until_taken(1, b"before")
    for number in range(3):
        await readers.readers[0].close()
        await readers.send(0, b"%d" % number)
        await readers.send(1, b"%d" % number)
        await readers.begin(0)
    await readers.until_taken(0, b"0", b"1", b"2")
    await readers.until_taken(1, b"before", b"0", b"1", b"2")


async def test_consumer_ends_with_its_last_reader_and_a_new_one_is_made(readers: Readers) -> None:
    for reader in readers.readers:
        await reader.close()
    with pytest.raises(RetryError, match="not open"):
        await readers.take(0)
    for number in range(TOPICS):
        await readers.begin(number)
    await readers.send(0, b"first")
    await readers.until_taken(0, b"first")
    await readers.assert_others_go_on()


async def test_consumer_is_probed_and_a_shorter_log_is_met_by_its_reader(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads past a bound: a full share fetches nothing, which would show it by itself."""
    monkeypatch.setattr(joint, "PROBE_EVERY_SECONDS", 0.05)
    of_first = property(lambda share: share._topic == readers.topics[0])
    monkeypatch.setattr(joint.Share, "is_full", of_first)
    for reader in readers.readers:
        await reader.close()
    readers.taken[0] = [b"lost", b"lost"]
    for number in range(TOPICS):
        await readers.begin(number)
    await readers.until_refused(RetryError, "ends at 0 now")
    await readers.assert_others_go_on()
