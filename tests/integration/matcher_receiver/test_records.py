"""Gaps and halts of receivers, stored in a real database; starts; many chains in one process."""

import asyncio

import asyncpg
import pytest

from chain_kernel.clock import time_of
from chain_kernel.errors import ForeignDatabase, RowsArchived
from chain_kernel.model import Run
from chain_kernel.sql import GAP_READER
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig, Receiver, ReceiverConfig, StartAt
from tests.builders.chains import ids_of
from tests.builders.stored_chain import StoredChain
from tests.builders.topics import send_records
from tests.integration.matcher_receiver.test_receiver import next_events
from tests.tuned import tuned

from .conftest import MakeReceiver, Publish, RoleDsn


async def test_gaps_of_a_receiver_stand_in_the_database_when_it_has_closed(
    stored: StoredChain, make_receiver: MakeReceiver, publish: Publish, admin: asyncpg.Connection
) -> None:
    async with make_receiver(name="ledger", poll_after_seconds=600.0) as receiver:
        lost, seen = await stored.commit(30), await stored.commit(5)
        await publish(stored.chain.frames(seen))
        await next_events(receiver, stored.chain.mark().id)
        (gap,) = receiver.gaps
    row = await admin.fetchrow("SELECT * FROM receiver_gap")
    assert (row["receiver"], row["after_id"], row["until_id"]) == ("ledger", 0, lost.last_id)
    assert (row["cause"], row["outcome"], row["row_count"]) == ("frame", "filled", 30)
    assert row["duration"].total_seconds() == pytest.approx(gap.duration_ns / 1e9, abs=1e-5)


@pytest.mark.parametrize("start", ["checkpoint", "fill"])
async def test_rows_behind_a_planted_boundary_are_archived_by_error_and_ledger(
    stored: StoredChain, make_receiver: MakeReceiver, admin: asyncpg.Connection, start: str
) -> None:
    first = await stored.commit(6)
    async with make_receiver(until=first.events[1].id) as receiver:
        async for run in receiver:
            await receiver.checkpoint(run)
    boundary = await stored.commit(6)
    await stored.commit(6)

    async def receive() -> None:
        if start == "checkpoint":
            await stored.archive_up_to(boundary)
        async with make_receiver() as receiver:
            if start == "fill":
                await stored.archive_up_to(boundary)
            await next_events(receiver, stored.chain.mark().id)

    with pytest.raises(RowsArchived) as caught:
        await receive()
    assert caught.value.until_id == boundary.last_id
    row = await admin.fetchrow("SELECT * FROM receiver_gap")
    shown = row["after_id"], row["outcome"], row["row_count"], row["cause"]
    assert shown == (first.events[1].id, "archived", 0, "start")
    assert row["until_id"] >= boundary.last_id


async def test_ledger_that_cannot_be_written_never_holds_up_the_delivery(
    stored: StoredChain, make_receiver: MakeReceiver, publish: Publish, database: str
) -> None:
    blocker = await asyncpg.connect(database)
    async with make_receiver(poll_after_seconds=600.0) as receiver:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE receiver_gap IN ACCESS EXCLUSIVE MODE")
            for _ in range(5):
                await stored.commit(5)
                await publish(stored.chain.frames(await stored.commit(5)))
                await next_events(receiver, stored.chain.mark().id)
        assert receiver.stats().gaps == 5
    assert await blocker.fetchval("SELECT count(*) FROM receiver_gap") == 5
    await blocker.close()


async def test_place_that_was_carried_into_another_database_is_refused(
    stored: StoredChain, make_receiver: MakeReceiver, admin: asyncpg.Connection
) -> None:
    await stored.commit(10)
    async with make_receiver(until="head") as receiver:
        async for run in receiver:
            await receiver.checkpoint(run)
    await admin.execute("UPDATE schema_version SET database_id = gen_random_uuid()")
    with pytest.raises(ForeignDatabase):
        async with make_receiver():
            pass


@pytest.mark.parametrize("kind", ["end", "after_id", "time"])
async def test_start_at_a_place_while_rows_are_committed_hands_on_all_behind_it(
    stored: StoredChain, make_receiver: MakeReceiver, publish: Publish, kind: str
) -> None:
    for _ in range(5):
        await stored.commit(7)
    middle = stored.chain.batches[2]
    start_at = {
        "end": StartAt("end"),
        "after_id": StartAt(after_id=middle.last_id),
        "time": StartAt(time=time_of(stored.chain.batches[3].committed_at_us * 1_000)),
    }[kind]

    async def write() -> None:
        for _ in range(10):
            await publish(stored.chain.frames(await stored.commit(7), slice_rows=3))

    writer = asyncio.ensure_future(write())
    async with make_receiver(start_at=start_at) as receiver:
        begun = receiver.head_delivered
        if kind != "end":
            assert begun == middle.last_id
        await writer
        events = await next_events(receiver, stored.chain.mark().id)
    assert events == [event for event in stored.chain.events if event.id > begun]


@pytest.mark.guarantee("G18")
async def test_slow_handler_slows_the_reading_and_not_the_memory(
    bootstrap: str, topic: str, stored: StoredChain, role_dsn: RoleDsn, chain_id: int
) -> None:
    fetch_bytes = 256 * 1024
    source = KafkaFrameSource(
        KafkaSourceConfig(kafka=bootstrap, topic=topic, fetch_bytes=fetch_bytes)
    )
    pulled: list[int] = []
    read = source.records

    async def counted(timeout_seconds: float) -> list[bytes | None]:
        records = await read(timeout_seconds)
        pulled.append(sum(len(record or b"") for record in records))
        return records

    source.records = counted  # type: ignore[method-assign]
    receiver = Receiver(
        tuned(ReceiverConfig(chain_id=chain_id), poll_after_seconds=600.0),
        source,
        GapReader(GapReaderConfig(database=role_dsn(GAP_READER), chain_id=chain_id)),
    )
    async with receiver:
        frames: list[bytes] = []
        for _ in range(40):
            batch = await stored.commit(4, payload_bytes=32 * 1024)
            frames += stored.chain.frames(batch, slice_rows=2)
        await send_records(bootstrap, topic, *frames)
        ids: list[int] = []
        handled = 0
        run: Run
        while not ids or ids[-1] < stored.chain.mark().id:
            run = await anext(receiver)
            handled += sum(len(event.payload) for event in run.events)
            # Not pulled while the caller works: what is in hand is one fetch at most.
            assert sum(pulled) - handled <= 2 * fetch_bytes
            calls = len(pulled)
            await asyncio.sleep(0)
            assert len(pulled) == calls
            ids += ids_of([run])
    assert ids == stored.chain.ids
    assert receiver.stats().gaps == 0
