"""The receiver over a real PostgreSQL and a real Kafka."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import asyncpg
import pytest

from chain_kernel.errors import CheckpointLost, ForeignDatabase
from chain_kernel.model import Event
from chain_kernel.sql import RECEIVER_WRITER
from matcher_receiver import Receiver, State
from tests.builders.stored_chain import StoredChain
from tests.deadlines import deadline
from tests.opened import connected

from .conftest import MakeReceiver, Publish, RoleDsn


async def next_events(receiver: Receiver, until_id: int) -> list[Event]:
    """What the receiver hands on until it has handed on `until_id`."""
    events: list[Event] = []
    async with deadline():
        while not events or events[-1].id < until_id:
            events += (await anext(receiver)).events
    return events


@pytest.mark.guarantee("G5")
async def test_receiver_killed_at_any_moment_applies_every_row_once(
    stored: StoredChain,
    make_receiver: MakeReceiver,
    publish: Publish,
    admin: asyncpg.Connection,
    role_dsn: RoleDsn,
) -> None:
    """Effect and checkpoint in one transaction, through a dozen kills."""
    await admin.execute("CREATE TABLE effect (place serial PRIMARY KEY, id bigint NOT NULL)")
    await admin.execute("GRANT INSERT ON effect TO receiver_writer")
    await admin.execute("GRANT USAGE ON effect_place_seq TO receiver_writer")

    async def work() -> None:
        connection = await asyncpg.connect(role_dsn(RECEIVER_WRITER))
        try:
            async with make_receiver() as receiver:
                async for run in receiver:
                    async with connection.transaction():
                        ids = [(event.id,) for event in run.events]
                        await connection.executemany("INSERT INTO effect (id) VALUES ($1)", ids)
                        await receiver.checkpoint(run, connection=connection)
        finally:
            connection.terminate()

    random = Random(4)
    for _ in range(12):
        worker = asyncio.ensure_future(work())
        frames = []
        for _ in range(6):
            frames += stored.chain.frames(await stored.commit(20), slice_rows=7)
        await publish([frame for frame in frames if random.random() > 0.2])
        await asyncio.sleep(random.uniform(0.0, 0.2))
        worker.cancel()
        await asyncio.wait([worker])
    async with deadline():
        worker = asyncio.ensure_future(work())
        query = "SELECT count(*) FROM effect"
        while await admin.fetchval(query) < len(stored.chain.ids):  # noqa: ASYNC110 - a table
            await asyncio.sleep(0.02)
        worker.cancel()
        await asyncio.wait([worker])
    rows = await admin.fetch("SELECT id FROM effect ORDER BY place")
    assert [row_id for (row_id,) in rows] == stored.chain.ids


PLACE = "SELECT head_delivered FROM receiver_checkpoint"


@pytest.fixture
async def connection(role_dsn: RoleDsn) -> AsyncIterator[asyncpg.Connection]:
    """A caller's own."""
    async with connected(role_dsn(RECEIVER_WRITER)) as connection:
        yield connection


@pytest.mark.guarantee("G5")
async def test_checkpoints_in_smaller_steps_after_a_rollback_are_stored(
    stored: StoredChain,
    make_receiver: MakeReceiver,
    publish: Publish,
    admin: asyncpg.Connection,
    connection: asyncpg.Connection,
) -> None:
    async with make_receiver() as receiver, deadline():
        runs = []
        for _ in range(4):
            await publish(stored.chain.frames(await stored.commit(5)))
            runs.append(await anext(receiver))
        for run in runs[1:3]:
            rolled_back = connection.transaction()
            await rolled_back.start()
            await receiver.checkpoint(runs[0], connection=connection)
            await receiver.checkpoint(run, connection=connection)
            await rolled_back.rollback()
        for run in runs:
            async with connection.transaction():
                await receiver.checkpoint(run, connection=connection)
            assert await admin.fetchval(PLACE) == run.last_id


@pytest.mark.guarantee("G5")
async def test_checkpoint_within_a_transaction_over_many_runs_is_as_lost_as_its_effects(
    stored: StoredChain,
    make_receiver: MakeReceiver,
    publish: Publish,
    admin: asyncpg.Connection,
    connection: asyncpg.Connection,
) -> None:
    async with make_receiver() as receiver, deadline():
        runs = []
        rolled_back = connection.transaction()
        await rolled_back.start()
        for _ in range(4):
            await publish(stored.chain.frames(await stored.commit(5)))
            runs.append(await anext(receiver))
            await receiver.checkpoint(runs[-1], connection=connection)
        await rolled_back.rollback()
        for run in runs:
            async with connection.transaction():
                await receiver.checkpoint(run, connection=connection)
            assert await admin.fetchval(PLACE) == run.last_id
        with pytest.raises(CheckpointLost):  # it is committed: its effect would be there twice
            async with connection.transaction():
                await receiver.checkpoint(runs[1], connection=connection)


@pytest.mark.guarantee("G8")
async def test_receiver_with_another_database_at_the_same_address_halts(
    stored: StoredChain, make_receiver: MakeReceiver, admin: asyncpg.Connection
) -> None:
    await stored.commit(5)
    async with make_receiver(poll_after_seconds=0.2) as receiver:
        await next_events(receiver, stored.chain.mark().id)
        await admin.execute("UPDATE schema_version SET database_id = gen_random_uuid()")
        async with deadline():
            with pytest.raises(ForeignDatabase):
                await anext(receiver)
        assert receiver.state is State.HALTED
