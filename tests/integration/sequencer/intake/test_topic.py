"""A real topic becomes a real chain: each record once, rejects on record, nothing skipped."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from chain_kernel.errors import IntakeLost, TopicError
from chain_kernel.model import is_linked
from sequencer import Sequencer, SequencerConfig, TopicIntake, TopicIntakeConfig, open_sequencer
from sequencer.intake.joint import JointConsumers
from sequencer.intake.reader import TopicReader
from tests.builders.created_chain import Chain
from tests.builders.topics import make_topics
from tests.deadlines import deadline, in_time
from tests.integration.sequencer.conftest import MakeChain
from tests.opened import administering

Record = tuple[int, bytes | None, bytes | None]


class Topic:
    """A topic of orders, and what was put into it."""

    def __init__(self, kafka: str, name: str) -> None:
        self.kafka = kafka
        self.name = name
        self.end: dict[int, int] = {}
        self.joint: JointConsumers | None = None

    def intake(self, config: TopicIntakeConfig, sequencer: Sequencer) -> TopicIntake:
        """Return an intake, which reads as the fixture says."""
        return TopicIntake(config, sequencer, source=TopicReader(config, self.joint))

    async def add(self, records: Sequence[Record], **settings: Any) -> None:
        """Append records, those of a partition in their order."""
        async with AIOKafkaProducer(
            bootstrap_servers=self.kafka, max_request_size=2**21, linger_ms=5, **settings
        ) as producer:
            sent = [
                await producer.send(self.name, value, key=key, partition=partition)
                for partition, key, value in records
            ]
            for ack in await asyncio.gather(*sent):
                self.end[ack.partition] = max(self.end.get(ack.partition, 0), ack.offset + 1)

    async def manage(self, act: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> None:
        async with administering(self.kafka) as admin:
            await act(admin)

    async def create(self, partitions: int, **settings: str) -> None:
        configs = {key.replace("_", "."): value for key, value in settings.items()}
        await make_topics(self.kafka, self.name, partitions=partitions, configs=configs)
        self.end = dict.fromkeys(range(partitions), 0)

    async def delete(self) -> None:
        await self.manage(lambda admin: admin.delete_topics([self.name]))


@pytest.fixture
async def chain(make_chain: MakeChain) -> Chain:
    return await make_chain(batch_rows_max=500)


@pytest.fixture(params=["alone", "with others"])
async def topic(request: pytest.FixtureRequest, chain: Chain) -> AsyncIterator[Topic]:
    assert isinstance(chain.config.kafka, str)
    topic = Topic(chain.config.kafka, f"in.{chain.topic}")
    await topic.create(3, max_message_bytes=str(2**21))
    if request.param != "alone":
        topic.joint = JointConsumers(config_of(topic))
    yield topic
    if topic.joint is not None:
        await topic.joint.close()


def config_of(topic: Topic, **settings: Any) -> TopicIntakeConfig:
    return TopicIntakeConfig(kafka=topic.kafka, topic=topic.name, **settings)


@asynccontextmanager
async def taking(
    chain: Chain, topic: Topic, config: SequencerConfig | None = None, **settings: Any
) -> AsyncIterator[TopicIntake]:
    async with open_sequencer(config or chain.config) as sequencer:
        intake = topic.intake(config_of(topic, **settings), sequencer)
        running = asyncio.create_task(intake.run())
        try:
            yield intake
        finally:
            intake.stop()
            await in_time(running)


async def positions(chain: Chain, topic: Topic) -> dict[int, int]:
    rows = await chain.admin.fetch("SELECT source, position FROM chain_intake")
    found = {row["source"]: row["position"] for row in rows}
    return {partition: found.get(f"topic:{topic.name}:{partition}", -1) for partition in topic.end}


async def until_taken(chain: Chain, topic: Topic) -> None:
    async with deadline():
        while await positions(chain, topic) != topic.end:  # noqa: ASYNC110 - another process's doing
            await asyncio.sleep(0.02)


async def until_begun(chain: Chain, topic: Topic) -> None:
    async with deadline():
        while max((await positions(chain, topic)).values()) <= 0:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


async def rejects(chain: Chain) -> dict[tuple[str, int], str]:
    rows = await chain.admin.fetch("SELECT source, position, reason FROM chain_intake_reject")
    return {(row["source"], row["position"]): row["reason"] for row in rows}


async def test_topic_becomes_the_chain_across_restarts(chain: Chain, topic: Topic) -> None:
    records: list[Record] = []
    bad: set[tuple[str, int]] = set()
    for number in range(900):
        partition = number % 3
        records.append((partition, f"c{partition}#{number}".encode(), b"x"))
        records.append((partition, f"free{number}".encode(), b"x"))
        records.append((partition, f"free{number // 2 * 2}".encode(), b"x"))  # a repeat, or to come
        records.append((partition, None, b"no key"))
        if number % 100 < 3:
            bad.add((f"topic:{topic.name}:{partition}", sum(r[0] == partition for r in records)))
            records.append((partition, f"tomb{number}".encode(), None))
    half = len(records) // 2
    await topic.add(records[:half])
    async with taking(chain, topic, records_max=100):
        await until_begun(chain, topic)
    await topic.add(records[half:])
    async with taking(chain, topic) as intake:
        await until_taken(chain, topic)
    rows = await chain.rows()
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys))
    made = {
        f"{topic.name}/{partition}#{offset}"
        for partition in range(3)
        for offset, record in enumerate([r for r in records if r[0] == partition])
        if record[1] is None
    }
    given = {key.decode() for _, key, value in records if key is not None and value is not None}
    assert set(keys) == given | made
    for partition in range(3):
        mine = [key for key in keys if key.startswith(f"c{partition}#")]
        assert mine == [f"c{partition}#{number}" for number in range(partition, 900, 3)]
    assert is_linked(0, rows)
    assert set(await rejects(chain)) == bad
    assert intake.stats().interruptions == 0
    async with taking(chain, topic) as intake:
        await until_taken(chain, topic)
    assert len(await chain.rows()) == len(rows)


async def test_aborted_orders_never_reach_the_chain(chain: Chain, topic: Topic) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=topic.kafka, transactional_id=f"t.{topic.name}"
    ) as producer:
        for number in range(6):
            await producer.begin_transaction()
            await producer.send_and_wait(topic.name, b"x", key=b"k%d" % number, partition=1)
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
    topic.end[1] = 12  # each of them ends with a marker of the broker's
    async with taking(chain, topic):
        await until_taken(chain, topic)
    assert [row.key for row in await chain.rows()] == ["k0", "k2", "k4"]
    # What is deleted later was all read, the last marker too.
    deleted = {TopicPartition(topic.name, 1): RecordsToDelete(before_offset=12)}
    await topic.manage(lambda admin: admin.delete_records(deleted))
    async with taking(chain, topic):
        await topic.add([(1, b"k6", b"x")])
        await until_taken(chain, topic)
    assert [row.key for row in await chain.rows()] == ["k0", "k2", "k4", "k6"]


@pytest.mark.parametrize(
    ("count", "message"), [(2, "it ends at 2"), (9, "the topic was made again")]
)
async def test_topic_made_anew_under_the_same_name_stops_the_intake(
    chain: Chain, topic: Topic, count: int, message: str
) -> None:
    await topic.add([(0, b"k%d" % number, b"x") for number in range(5)])
    async with taking(chain, topic):
        await until_taken(chain, topic)
    await topic.delete()
    async with deadline():
        while True:
            try:
                await topic.create(3)
                await topic.add([(0, b"other%d" % number, b"x") for number in range(count)])
            except Exception:  # noqa: BLE001 - the broker is still busy with the deletion
                await asyncio.sleep(0.1)
            else:
                break
    async with open_sequencer(chain.config) as sequencer:
        with pytest.raises(IntakeLost, match=message):
            await topic.intake(config_of(topic), sequencer).run()
    assert len(await chain.rows()) == 5


async def test_topic_that_is_missing_or_compacted_is_refused(chain: Chain, topic: Topic) -> None:
    missing = Topic(topic.kafka, f"missing.{topic.name}")
    compacted = Topic(topic.kafka, f"compacted.{topic.name}")
    await compacted.create(1, cleanup_policy="compact")
    async with open_sequencer(chain.config) as sequencer:
        with pytest.raises(TopicError, match="a topic that exists"):
            await topic.intake(config_of(missing), sequencer).run()
        with pytest.raises(TopicError, match=r"cleanup\.policy"):
            await topic.intake(config_of(compacted), sequencer).run()
