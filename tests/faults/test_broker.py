"""The broker stopped, frozen, or made to refuse: orders go on, and receivers miss nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from random import Random
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from chain_kernel.clients import topics
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.errors import BrokerAway, ConnectError, RetryError
from chain_kernel.limits import FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX
from chain_kernel.monitoring import LagLimits
from local_stack import KafkaServer
from sequencer import (
    Order,
    Sequencer,
    SequencerConfig,
    SharedConnections,
    TopicIntake,
    TopicIntakeConfig,
    check_intake_topic,
    open_sequencer,
)
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.builders.topics import make_topics, send_records
from tests.deadlines import deadline, until
from tests.opened import administering, connected

from .addresses import proxy_before
from .conftest import MakeChain
from .inspector import inspect, inspect_topic
from .proxy import is_produce

SUBMIT_SECONDS = 5.0
"""Far more than a commit takes, and less than any deadline of the publisher's taken twice."""


Opener = Callable[[SequencerConfig], AbstractAsyncContextManager[Sequencer]]


class _OneOfMany(AbstractAsyncContextManager[Sequencer]):
    """A sequencer over what the chains of a process share."""

    def __init__(self, config: SequencerConfig) -> None:
        self._shared = SharedConnections([config])
        self._sequencer = self._shared.sequencer(config)

    async def __aenter__(self) -> Sequencer:
        await self._shared.__aenter__()
        return await self._sequencer.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._sequencer.__aexit__(*error)
        finally:
            await self._shared.close()


@pytest.fixture(params=[open_sequencer, _OneOfMany], ids=["alone", "one of many"])
def opened(request: pytest.FixtureRequest) -> Opener:
    opener: Opener = request.param
    return opener


async def submit_each(sequencer: Sequencer, orders: list[Order]) -> None:
    """Submit one after the other, none of which may be held up."""
    for order in orders:
        async with deadline(SUBMIT_SECONDS):
            await sequencer.submit(order.key, order.payload)


async def until_published(sequencer: Sequencer) -> None:
    """Wait until all that is committed is published, or skipped on record."""

    def is_published() -> bool:
        stats = sequencer.stats()
        return stats.head_published == stats.head_persisted

    await until(is_published)


async def assert_whole(chain: Chain) -> None:
    await inspect(chain)
    await inspect_topic(chain)


async def test_broker_that_is_stopped_and_comes_back_lacks_nothing(
    opened: Opener, chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer
) -> None:
    chain = await chain_on_breakable_kafka(publish_seconds=1.0)
    async with opened(chain.config) as sequencer:
        await submit_each(sequencer, make_orders(20, size=100))
        await asyncio.to_thread(kafka_to_break.kill)
        await submit_each(sequencer, make_orders(100, start=100, size=100))
        await until(lambda: sequencer.stats().send_failures > 0)
        await submit_each(sequencer, make_orders(100, start=300, size=100))
        await asyncio.to_thread(kafka_to_break.start)
        await until_published(sequencer)
        stats = sequencer.stats()
    assert stats.take_overs == 1
    assert await chain.fetch("SELECT * FROM chain_skip") == []
    await assert_whole(chain)


@pytest.mark.guarantee("G14", "G18")
async def test_broker_away_for_long_is_skipped_on_record_up_to_the_head(
    opened: Opener, chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer
) -> None:
    chain = await chain_on_breakable_kafka(
        publish_seconds=1.0, publish_queue_bytes_max=FRAME_BYTES_MAX, publish_wait_seconds=1.0
    )
    async with opened(chain.config) as sequencer:
        await submit_each(sequencer, make_orders(5, size=100))
        await asyncio.to_thread(kafka_to_break.stop)
        await submit_each(sequencer, make_orders(60, start=100, size=200_000))
        stats = sequencer.stats()
        # At most the first order without room waited: from then on the broker counts as away.
        assert stats.publish_waits <= 1
        assert stats.publish_queue_bytes <= FRAME_BYTES_MAX
        await asyncio.to_thread(kafka_to_break.start)
        await until_published(sequencer)
        await submit_each(sequencer, make_orders(5, start=1_000, size=100))
    assert len(await chain.fetch("SELECT * FROM chain_skip")) >= 1
    await assert_whole(chain)


async def test_standby_that_takes_over_while_the_broker_is_away_reads_the_topic_once_it_is_back(
    chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer
) -> None:
    chain = await chain_on_breakable_kafka(publish_seconds=1.0)
    kafka = chain.config.kafka
    assert isinstance(kafka, str)
    topic = TopicIntakeConfig(kafka=kafka, topic=f"orders.{chain.topic}", connect_seconds=2.0)
    await make_topics(kafka, topic.topic)
    standby = open_sequencer(chain.with_settings(standby=True))
    async with open_sequencer(chain.config):
        await check_intake_topic(topic)  # as our command does, before it waits
        waiting = asyncio.create_task(standby.__aenter__())
        await until(lambda: standby._store.line.is_open or waiting.done())  # type: ignore[attr-defined]
        await asyncio.to_thread(kafka_to_break.kill)
    async with AsyncExitStack() as closing:
        await waiting
        closing.push_async_exit(standby)
        intake = TopicIntake(topic, standby)
        taking = asyncio.create_task(intake.run())
        await until(lambda: intake.stats().interruptions > 0 or taking.done())
        await asyncio.to_thread(kafka_to_break.start)
        await send_records(kafka, topic.topic, b"order", key=b"key")
        await until(lambda: intake.stats().records > 0 or taking.done())
        intake.stop()
        await taking
        await until_published(standby)
    await assert_whole(chain)


@pytest.mark.parametrize("fault", ["stopped", "frozen"])
async def test_intakes_with_one_consumer_take_all_after_a_broker_that_was_away(
    chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer, fault: str
) -> None:
    chain = await chain_on_breakable_kafka(publish_seconds=1.0)
    kafka = chain.config.kafka
    assert isinstance(kafka, str)
    topics = [
        TopicIntakeConfig(
            kafka=kafka, topic=f"{number}.{chain.topic}", connect_seconds=2.0, request_seconds=1.0
        )
        for number in range(3)
    ]

    async def send(key: bytes) -> None:
        for number, topic in enumerate(topics):
            await send_records(kafka, topic.topic, b"order", key=b"%d-%s" % (number, key))

    await make_topics(kafka, *(topic.topic for topic in topics))
    config = chain.with_settings(standby=True)
    async with SharedConnections([config]) as shared, shared.sequencer(config) as sequencer:
        intakes = [shared.intake(topic, sequencer) for topic in topics]
        taking = [asyncio.create_task(intake.run()) for intake in intakes]

        def have(count: int) -> bool:
            assert not any(task.done() for task in taking), taking
            return all(intake.stats().records >= count for intake in intakes)

        await send(b"before")
        await until(lambda: have(1))
        if fault == "frozen":
            kafka_to_break.freeze()
        else:
            await asyncio.to_thread(kafka_to_break.kill)
        await until(lambda: all(intake.stats().interruptions for intake in intakes))
        if fault == "frozen":
            kafka_to_break.thaw()
        else:
            await asyncio.to_thread(kafka_to_break.start)
        await send(b"after")
        await until(lambda: have(2))
        for intake in intakes:
            intake.stop()
        await asyncio.gather(*taking)
        await until_published(sequencer)
    await assert_whole(chain)


@pytest.mark.parametrize("fault", ["away", "silent", "topic gone"])
async def test_chain_that_was_led_before_is_led_again_whatever_its_broker_and_topic_are(
    chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer, fault: str
) -> None:
    chain = await chain_on_breakable_kafka(
        connect_seconds=2.0, publish_seconds=1.0, stop_seconds=1.0
    )
    async with open_sequencer(chain.config) as leader:
        await submit_each(leader, make_orders(5, size=100))
        await until_published(leader)
    if fault == "topic gone":
        await change_topics(chain, lambda admin: admin.delete_topics([chain.topic]))
    else:
        await asyncio.to_thread(kafka_to_break.stop if fault == "away" else kafka_to_break.freeze)
    standby = open_sequencer(chain.with_settings(standby=True))
    async with open_sequencer(chain.config) as leader:
        waiting = asyncio.create_task(standby.__aenter__())
        await submit_each(leader, make_orders(5, start=100, size=100))
        await until(lambda: bool(leader.stats().broker_refusal))
        at_once = LagLimits(ids=0, seconds=0.0, seconds_max=0.0)
        assert ("topic" if fault == "topic gone" else "kafka") in str(leader.why_not_ready(at_once))
    await waiting
    async with AsyncExitStack() as closing:
        closing.push_async_exit(standby)
        await submit_each(standby, make_orders(5, start=200, size=100))
        if fault == "topic gone":
            await make_topics(kafka_to_break.bootstrap, chain.topic)
        elif fault == "away":
            await asyncio.to_thread(kafka_to_break.start)
        else:
            kafka_to_break.thaw()
        await until_published(standby)
    await inspect(chain)
    if fault != "topic gone":  # what it held went with it, and receivers read the database
        await inspect_topic(chain)


async def test_topic_that_goes_under_a_leader_is_an_error_until_it_is_back(
    opened: Opener,
    chain_on_breakable_kafka: MakeChain,
    kafka_to_break: KafkaServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chain = await chain_on_breakable_kafka(publish_seconds=1.0)
    async with opened(chain.config) as sequencer:
        await submit_each(sequencer, make_orders(5, size=100))
        await change_topics(chain, lambda admin: admin.delete_topics([chain.topic]))
        expected = "expected a topic that exists"
        await until(lambda: expected in sequencer.stats().broker_refusal)
        await submit_each(sequencer, make_orders(5, start=100, size=100))
        await make_topics(kafka_to_break.bootstrap, chain.topic)
        await until_published(sequencer)
    assert expected in "".join(r.message for r in caplog.records if r.levelname == "ERROR")
    published = [event for _, events in await chain.frames() for event in events]
    assert published[-5:] == (await inspect(chain))[-5:]


async def change_topics(chain: Chain, act: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> None:
    async with administering(chain.config.kafka) as admin:
        await act(admin)


async def test_broker_that_is_slow_slows_the_commits_and_no_row_is_skipped(
    opened: Opener, chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer
) -> None:
    async with proxy_before(kafka_to_break) as proxy:
        chain = await chain_on_breakable_kafka(
            publish_seconds=60.0, publish_queue_bytes_max=FRAME_BYTES_MAX, publish_wait_seconds=60.0
        )
        # A part of what the database takes.
        proxy.bytes_per_second = 10 * 2**20
        async with opened(chain.with_settings(kafka=f"127.0.0.1:{proxy.port}")) as sequencer:
            for start in range(0, 20_000, 1_000):
                await sequencer.submit_many(make_orders(1_000, start=start, size=2_000))
                assert sequencer.stats().publish_queue_bytes <= FRAME_BYTES_MAX + 2 * 2_100_000
            stats = sequencer.stats()
            await until_published(sequencer)
    assert stats.publish_waits > 0
    assert stats.publish_wait_seconds > 0
    assert stats.send_failures == 0
    assert await chain.fetch("SELECT * FROM chain_skip") == []
    await assert_whole(chain)


async def test_broker_that_takes_a_trial_record_and_never_acknowledges_it_is_named(
    chain_on_breakable_kafka: MakeChain,
    kafka_to_break: KafkaServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "TRIAL_SECONDS", 0.5)
    chain = await chain_on_breakable_kafka()
    async with proxy_before(kafka_to_break) as proxy:
        trap = proxy.set_trap(is_produce, lets_through=True)
        config = KafkaConfig.of(f"127.0.0.1:{proxy.port}")
        async with deadline():
            why = (await topics.try_topics(config, [chain.topic]))[chain.topic]
        trap.cut()
        assert isinstance(why, RetryError)
        assert "the broker took a record and has not acknowledged it after 0.5 s" in str(why)


@pytest.mark.guarantee("G17")
async def test_frozen_broker_makes_no_submit_wait(
    opened: Opener, chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer
) -> None:
    chain = await chain_on_breakable_kafka(publish_seconds=0.5)
    async with opened(chain.config) as sequencer:
        await submit_each(sequencer, make_orders(20, size=100))
        kafka_to_break.freeze()
        await submit_each(sequencer, make_orders(200, start=100, size=100))
        await until(lambda: sequencer.stats().send_failures >= 2)
        kafka_to_break.thaw()
        await until_published(sequencer)
    await assert_whole(chain)


@pytest.mark.guarantee("G17")
async def test_stop_while_the_broker_is_frozen_ends_in_time_and_a_restart_publishes(
    opened: Opener, chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer
) -> None:
    chain = await chain_on_breakable_kafka(stop_seconds=1.0)
    opening = opened(chain.config)
    sequencer = await opening.__aenter__()
    await submit_each(sequencer, make_orders(20, size=100))
    kafka_to_break.freeze()
    await submit_each(sequencer, make_orders(20, start=100, size=100))
    async with deadline():
        await opening.__aexit__(None, None, None)
    # It has committed all, so a standby leads at once, whatever is not published yet.
    async with connected(chain.database) as connection:
        assert await connection.fetchval("SELECT released FROM chain_lease")
    kafka_to_break.thaw()
    async with opened(chain.config) as sequencer:
        await until_published(sequencer)
    await assert_whole(chain)


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
async def test_lost_answer_to_a_send_is_sent_again_by_a_new_producer(
    opened: Opener,
    chain_on_breakable_kafka: MakeChain,
    kafka_to_break: KafkaServer,
    is_stored: bool,
) -> None:
    async with proxy_before(kafka_to_break) as proxy:
        chain = await chain_on_breakable_kafka(publish_seconds=1.0)
        config = chain.with_settings(kafka=f"127.0.0.1:{proxy.port}", heartbeat_seconds=60.0)
        async with opened(config) as sequencer:
            trap = proxy.set_trap(is_produce, lets_through=is_stored)
            await submit_each(sequencer, make_orders(5, size=100))
            await trap.wait()
            # The connection stays as it is, half open: only the deadline ends the wait.
            await submit_each(sequencer, make_orders(5, start=100, size=100))
            await until_published(sequencer)
            assert sequencer.stats().send_failures >= 1
            trap.cut()
    await assert_whole(chain)


async def set_topic_limit(kafka: KafkaServer, topic: str, bytes_max: int) -> None:
    async with administering(kafka.bootstrap) as admin:
        resource = ConfigResource(
            ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": str(bytes_max)}
        )
        for response in await admin.alter_configs([resource]):
            assert all(entry[0] == 0 for entry in response.resources), response


async def test_topic_limit_lowered_at_run_time_is_met_by_smaller_frames(
    opened: Opener, chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer
) -> None:
    chain = await chain_on_breakable_kafka()
    async with opened(chain.config) as sequencer:
        await sequencer.submit_many(make_orders(2_000, size=200))
        await until_published(sequencer)
        await set_topic_limit(kafka_to_break, chain.topic, 50_000)
        await sequencer.submit_many(make_orders(2_000, start=5_000, size=200))
        await until_published(sequencer)
        failures = sequencer.stats().send_failures
        await sequencer.submit_many(make_orders(2_000, start=9_000, size=200))
    assert failures >= 1
    assert sequencer.stats().send_failures == failures
    assert await chain.fetch("SELECT * FROM chain_skip") == []
    await assert_whole(chain)
    sizes = [len(events) for _, events in await chain.frames()]
    assert max(sizes[-20:]) * 200 < 50_000 < max(sizes) * 200


async def test_row_too_large_for_the_lowered_limit_is_skipped_on_record(
    opened: Opener, chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer
) -> None:
    chain = await chain_on_breakable_kafka()
    async with opened(chain.config) as sequencer:
        await sequencer.submit_many(make_orders(10, size=100))
        await set_topic_limit(kafka_to_break, chain.topic, 50_000)
        large = await sequencer.submit("large", Random(1).randbytes(PAYLOAD_BYTES_MAX))
        await sequencer.submit_many(make_orders(10, start=100, size=100))
        await until_published(sequencer)
        await set_topic_limit(kafka_to_break, chain.topic, 9_000_000)
        await sequencer.submit_many(make_orders(10, start=200, size=100))
        again = await sequencer.submit("large again", Random(2).randbytes(PAYLOAD_BYTES_MAX))
    (skip,) = await chain.fetch("SELECT after_id, until_id FROM chain_skip")
    assert skip["after_id"] < large.id <= skip["until_id"] < again.id
    await assert_whole(chain)


async def test_refuse_policy_refuses_while_the_broker_is_away_and_no_longer(
    chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer
) -> None:
    chain = await chain_on_breakable_kafka(
        publish_seconds=1.0, when_kafka_is_away="refuse", kafka_away_seconds=1.5
    )
    async with open_sequencer(chain.config) as sequencer:
        await submit_each(sequencer, make_orders(20, size=100))
        await until_published(sequencer)
        many = make_orders(40_000, start=100, size=1)  # made before: it takes a while
        kafka_to_break.freeze()
        with pytest.raises(BrokerAway, match="has not answered for"):
            await submit_each(sequencer, many)
        accepted = sequencer.stats().orders - 20
        with pytest.raises(BrokerAway):
            sequencer.submit_nowait("x", b"")
        kafka_to_break.thaw()
        await until_published(sequencer)
        await submit_each(sequencer, make_orders(20, start=50_000, size=100))
    assert accepted > 0
    await assert_whole(chain)


async def test_first_start_of_a_chain_with_the_broker_away_goes_by_the_setting(
    chain_on_breakable_kafka: MakeChain, kafka_to_break: KafkaServer
) -> None:
    chain = await chain_on_breakable_kafka(connect_seconds=1.0, publish_seconds=1.0)
    await asyncio.to_thread(kafka_to_break.stop)
    with pytest.raises(ConnectError, match="kafka"):
        async with open_sequencer(chain.config):
            pass
    async with open_sequencer(chain.with_settings(kafka_at_start="optional")) as sequencer:
        await submit_each(sequencer, make_orders(20, size=100))
        await asyncio.to_thread(kafka_to_break.start)
        await until_published(sequencer)
    await assert_whole(chain)
