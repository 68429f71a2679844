"""Kafka stopped, frozen, wiped: delivery goes on from the database, and returns to Kafka."""

import asyncio

import pytest

from local_stack import KafkaServer
from tests.builders.stored_chain import StoredChain
from tests.builders.topics import make_topics
from tests.deadlines import deadline
from tests.integration.matcher_receiver.test_receiver import next_events
from tests.lanes import at_night
from tests.opened import administering

from .conftest import MakeReceiver, Publish


@pytest.fixture
def bootstrap(kafka_to_break: KafkaServer) -> str:
    return kafka_to_break.bootstrap


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_receiver_with_its_broker_gone_goes_on_from_the_database_and_returns(
    kafka_to_break: KafkaServer,
    stored: StoredChain,
    make_receiver: MakeReceiver,
    publish: Publish,
    fault: str,
) -> None:
    async with make_receiver() as receiver:
        await publish(stored.chain.frames(await stored.commit(10)))
        events = await next_events(receiver, stored.chain.mark().id)
        await asyncio.to_thread(kafka_to_break.kill if fault == "kill" else kafka_to_break.freeze)
        for _ in range(3):
            await stored.commit(10)
            began = asyncio.get_running_loop().time()
            events += await next_events(receiver, stored.chain.mark().id)
            # Silence of 1 s, a question to the broker of at most 1 s, and the reading itself; the
            # rest is for machines that do much else at once.
            assert asyncio.get_running_loop().time() - began < 10
        assert receiver.stats().rows_filled == 30
        assert receiver.stats().broker_failures > 0
        await asyncio.to_thread(kafka_to_break.start if fault == "kill" else kafka_to_break.thaw)

        live = receiver.stats().rows_live
        async with deadline():
            while receiver.stats().rows_live == live:
                await publish(stored.chain.frames(await stored.commit(10)))
                events += await next_events(receiver, stored.chain.mark().id)
    assert events == stored.chain.events


async def test_receiver_with_its_broker_gone_stops_in_time(
    kafka_to_break: KafkaServer, stored: StoredChain, make_receiver: MakeReceiver
) -> None:
    await stored.commit(10)
    receiver = make_receiver()
    async with receiver:
        await next_events(receiver, stored.chain.mark().id)
        await asyncio.to_thread(kafka_to_break.freeze)
        waiting = asyncio.ensure_future(anext(receiver, None))
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        receiver.stop()
        assert await waiting is None
    assert asyncio.get_running_loop().time() - began < 6
    await asyncio.to_thread(kafka_to_break.thaw)


@pytest.mark.parametrize(
    "records", [pytest.param("fewer", marks=pytest.mark.merge), *at_night("more")]
)
async def test_receiver_with_its_topic_wiped_goes_on_from_the_database_and_returns(
    kafka_to_break: KafkaServer,
    stored: StoredChain,
    make_receiver: MakeReceiver,
    publish: Publish,
    records: str,
) -> None:
    """The topic is deleted and made again: no offset means anything any more."""
    async with make_receiver() as receiver:
        before = 20 if records == "fewer" else 2
        for _ in range(before):
            await publish(stored.chain.frames(await stored.commit(3)))
        events = await next_events(receiver, stored.chain.mark().id)
        await delete_topic(kafka_to_break.bootstrap, stored.topic)
        await make_topics(kafka_to_break.bootstrap, stored.topic)
        live = receiver.stats().rows_live
        async with deadline():
            while receiver.stats().rows_live < live + 60:
                await publish(stored.chain.frames(await stored.commit(10)))
                events += await next_events(receiver, stored.chain.mark().id)
    assert events == stored.chain.events


async def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic, and return once it is gone."""
    async with administering(bootstrap) as client:
        await client.delete_topics([topic])
        async with deadline():
            while topic in await client.list_topics():
                pass
