"""The receiver over a real PostgreSQL and a real Kafka."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import asyncpg
import pytest

from chain_kernel.errors import CheckpointLost, ForeignDatabase, ForkFound, RowsMissing
from chain_kernel.model import Event
from chain_kernel.sql import RECEIVER_WRITER
from matcher_receiver import Receiver, State
from tests.builders.stored_chain import STORED_PAGE_ROWS, StoredChain
from tests.deadlines import deadline
from tests.stored_pages import LET_TAMPER

from .conftest import MakeReceiver, Publish, RoleDsn


async def next_events(receiver: Receiver, until_id: int) -> list[Event]:
    """What the receiver hands on until it has handed on `until_id`."""
    events: list[Event] = []
    async with deadline():
        while not events or events[-1].id < until_id:
            events += (await anext(receiver)).events
    return events


async def test_receiver_with_lost_repeated_and_reordered_frames_delivers_the_chain(
    stored: StoredChain, make_receiver: MakeReceiver, publish: Publish
) -> None:
    async with make_receiver(poll_after_seconds=600.0) as receiver:
        frames = []
        for _ in range(30):
            frames += stored.chain.frames(await stored.commit(20), slice_rows=8)
        kept = [frame for at, frame in enumerate(frames) if at % 7]
        kept[10], kept[11] = kept[11], kept[10]
        kept[33] = kept[33][:-1] + b"\0"
        await publish([*kept[:40], None, *kept[20:30], *kept[40:], stored.chain.heartbeat()])
        events = await next_events(receiver, stored.chain.mark().id)
        stats, gaps = receiver.stats(), list(receiver.gaps)
    assert events == stored.chain.events
    assert stats.rows_live + stats.rows_filled == 600
    assert sum(gap.rows for gap in gaps) == stats.rows_filled > 0
    assert stats.duplicates_dropped >= 10
    assert stats.dropped["empty"] == 1


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


async def test_catch_up_whose_end_was_lost_in_a_failover_goes_on_to_the_new_head(
    stored: StoredChain, make_receiver: MakeReceiver
) -> None:
    kept = [await stored.commit(60) for _ in range(3)]  # more than is read ahead
    await stored.commit(60)
    async with make_receiver() as receiver:
        events = await next_events(receiver, stored.chain.ids[0])
        await stored.lose_after(kept[-1])
        stored.chain.take_over()
        await stored.lead()
        new = await stored.commit(5, skip=1_000)
        events += await next_events(receiver, new.last_id)
    assert [event.id for event in events] == stored.chain.ids


PLACE = "SELECT head_delivered FROM receiver_checkpoint"


@pytest.fixture
async def connection(role_dsn: RoleDsn) -> AsyncIterator[asyncpg.Connection]:
    """A caller's own."""
    connection = await asyncpg.connect(role_dsn(RECEIVER_WRITER))
    yield connection
    await connection.close()


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


SWAP = ", ".join(
    f"{name} = {name}[:4] || {name}[6:6] || {name}[5:5] || {name}[7:]"
    for name in ("ids", "pids", "keys", "event_times_ns", "payloads")
)
"""Two rows in each other's place, in the midst of a page."""


@pytest.mark.guarantee("G8", "G13")
@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO chain_event VALUES ($1, $2 + 1, $2, 'k', 0, '')",
        "UPDATE chain_event SET id = $2 + 1 WHERE chain_id = $1 AND id = $2",
        f"UPDATE chain_page SET {SWAP} WHERE chain_id = $1 AND ids[5] = $2",  # noqa: S608
    ],
    ids=["added", "under another id", "swapped"],
)
async def test_receiver_with_a_row_changed_in_its_page_halts_and_names_it(
    stored: StoredChain, make_receiver: MakeReceiver, admin: asyncpg.Connection, change: str
) -> None:
    """By links alone; that the content of a row was changed is found by seals."""
    before = await stored.commit(STORED_PAGE_ROWS)
    await stored.commit(120)
    ids = stored.chain.ids
    places = range(4 + 2 * STORED_PAGE_ROWS, len(ids), STORED_PAGE_ROWS)
    at = next(place for place in places if ids[place] + 1 < ids[place + 1])
    await admin.execute(LET_TAMPER)
    await admin.execute(change, stored.chain.chain_id, ids[at])
    async with make_receiver() as receiver:
        delivered = await next_events(receiver, before.last_id)
        with pytest.raises((ForkFound, RowsMissing)) as caught:
            await next_events(receiver, ids[-1])
    assert [event.id for event in delivered] == ids[:STORED_PAGE_ROWS]
    if SWAP in change:
        assert isinstance(caught.value, RowsMissing)
        assert (caught.value.after_id, caught.value.until_id) == (ids[at - 1], ids[at])
    else:
        assert isinstance(caught.value, ForkFound)
        named = caught.value.pid, caught.value.delivered_id, caught.value.found_id
        assert named == (ids[at], ids[at] + 1, ids[at + 1])


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


async def test_receiver_with_its_topic_missing_says_so_and_reads_the_database(
    stored: StoredChain,
    make_receiver: MakeReceiver,
    bootstrap: str,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from aiokafka.admin import AIOKafkaAdminClient

    await stored.commit(5)

    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    await client.delete_topics([topic])
    await client.close()
    async with make_receiver() as receiver, deadline():
        run = await anext(receiver)
    assert list(run.events) == stored.chain.events
    (line,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert f"topic was '{topic}', expected a topic that exists" in line
