"""A receiver of one config, over a real PostgreSQL and a real Kafka."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from orderchain import Event, Receiver, ReceiverConfig, State, open_receiver
from tests.builders.stored_chain import StoredChain
from tests.builders.topics import make_topics, send_records
from tests.deadlines import deadline, in_time
from tests.tuned import tuned

from .conftest import Publish, RoleDsn


@pytest.fixture
def config(role_dsn: RoleDsn, bootstrap: str, chain_id: int) -> Callable[..., ReceiverConfig]:
    def make(**settings: Any) -> ReceiverConfig:
        whole = ReceiverConfig(
            chain_id=chain_id,
            name="mine",
            database=role_dsn(RECEIVER_WRITER),
            gap_databases=(role_dsn(GAP_READER),),
            kafka=bootstrap,
        )
        return tuned(whole, **settings)

    return make


async def events_up_to(receiver: Receiver, until_id: int) -> list[Event]:
    events: list[Event] = []
    async with deadline():
        while not events or events[-1].id < until_id:
            run = await anext(receiver)
            events += run.events
            await receiver.checkpoint(run)
    return events


async def test_one_config_is_enough(stored: StoredChain, config: Any, bootstrap: str) -> None:
    topic = f"orders.of.{stored.chain.chain_id}"
    await stored.admin.execute("UPDATE chain_head SET topic = $1", topic)
    await make_topics(bootstrap, topic)
    await stored.commit(20)
    async with open_receiver(config(poll_after_seconds=600.0)) as receiver:
        events = await events_up_to(receiver, stored.chain.mark().id)
        frames = stored.chain.frames(await stored.commit(20))
        await send_records(bootstrap, topic, *frames)
        events += await events_up_to(receiver, stored.chain.mark().id)
        stats = receiver.stats()
    assert events == stored.chain.events
    assert (stats.rows_caught_up, stats.rows_live) == (20, 20)
    assert (stats.chain_id, stats.name) == (stored.chain.chain_id, "mine")
    async with open_receiver(config(until="head")) as again:
        assert [run async for run in again] == []  # its checkpoint was stored


@pytest.mark.parametrize("kafka_at_start", ["required", "optional"])
async def test_topic_that_is_gone_keeps_no_row_from_a_receiver(
    stored: StoredChain, config: Any, kafka_at_start: str
) -> None:
    await stored.admin.execute("UPDATE chain_head SET topic = 'nobody.has.made.it'")
    await stored.commit(20)
    async with open_receiver(config(until="head", kafka_at_start=kafka_at_start)) as receiver:
        events = [event async for run in receiver for event in run.events]
    assert events == stored.chain.events


async def test_order_that_was_waited_for_is_seen_in_the_callers_table(
    stored: StoredChain, config: Any, publish: Publish, admin: asyncpg.Connection, database: str
) -> None:
    await admin.execute("CREATE TABLE worked_off (id bigint PRIMARY KEY)")
    own = await asyncpg.connect(database)
    started = asyncio.Event()

    async def work(receiver: Receiver) -> None:
        async for run in receiver:
            async with own.transaction():
                rows = [(event.id,) for event in run.events]
                await own.executemany("INSERT INTO worked_off VALUES ($1)", rows)
                await receiver.checkpoint(run, connection=own)

    try:
        # The caller's transaction is on a login that may do both.
        async with open_receiver(
            config(database=database),
            on_state=lambda state: started.set() if state is State.LIVE else None,
        ) as receiver:
            working = asyncio.ensure_future(work(receiver))
            await in_time(started.wait())
            for _ in range(5):
                await publish(stored.chain.frames(await stored.commit(20), slice_rows=7))
                last_id = stored.chain.mark().id
                await in_time(receiver.until_delivered(last_id))
                seen = await admin.fetchval(
                    "SELECT count(*) FROM worked_off WHERE id <= $1", last_id
                )
                assert seen == len(stored.chain.events)
            receiver.stop()
            await working
    finally:
        await own.close()
