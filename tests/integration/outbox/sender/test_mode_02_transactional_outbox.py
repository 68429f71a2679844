"""Mode 2: stored in the business transaction, sent only after the commit, at once."""

from uuid import UUID, uuid4

import asyncpg
import pytest

import outbox
from chain_kernel.errors import SettingError
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from outbox import Message, MessageError, Status, draw_message_ids
from outbox.records import read_headers

from ..conftest import Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def test_message_of_a_committed_transaction_arrives_and_the_sweep_is_idle(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    business = await sender.connect()
    async with sender.relay() as relay:
        async with relay.transaction(business) as transaction:
            await business.execute("INSERT INTO trade VALUES (1)")
            message_id = await transaction.add(
                "clearing", b"\x00trade", key="k", headers={"kind": "trade", "name": "Zürich"}
            )
            assert await sender.sent(clearing) == []  # never before the commit
        await sender.until_status(message_id, Status.CONFIRMED)
        assert await relay.sweep() == 0
        assert relay.stats().swept == 0  # the fast path did it all
    (record,) = await sender.records(clearing.topic)
    headers = read_headers(record.headers)
    assert (record.key, record.value) == (b"k", b"\x00trade")
    assert (headers.message_id, headers.destination) == (message_id, "clearing")
    assert headers.confirm_topic == clearing.confirm_topic
    assert headers.own == {"kind": b"trade", "name": "Zürich".encode()}
    (row,) = await sender.pending()
    assert (row["topic"], row["partition"], row["offset"]) == (clearing.topic, 0, record.offset)
    assert (row["send_count"], row["claim_token"]) == (1, None)


async def test_message_stored_without_a_relay_is_sent_by_one_that_is_woken(sender: Sender) -> None:
    clearing = await sender.set_up()
    business = await sender.connect()
    async with sender.relay() as relay:
        async with business.transaction():
            by_python = await outbox.add(business, "clearing", b"1", headers={"a": "b"})
            by_sql = await business.fetchval(
                "SELECT outbox_add('clearing', '2', 'k', '{\"a\": \"b\"}')"
            )
        await outbox.wake(business)
        for message_id in (by_python, by_sql):
            await sender.until_status(message_id, Status.CONFIRMED)
        assert relay.stats().swept == 2
        assert relay.stats().resent == 0
    assert by_sql.version == 7
    assert sorted(await sender.sent(clearing)) == sorted([by_python, by_sql])
    records = await sender.records(clearing.topic)
    assert {read_headers(record.headers).own["a"] for record in records} == {b"b"}


async def test_many_single_adds_keep_a_short_list_of_what_is_stored(sender: Sender) -> None:
    """Each statement copies it: as long as the transaction, it would cost the square of that."""
    clearing = await sender.set_up()
    business = await sender.connect()
    kept: list[UUID] = []
    async with sender.relay() as relay:
        async with relay.transaction(business) as transaction:
            for number in range(120):
                point = business.transaction()
                await point.start()
                added = await transaction.add("clearing", b"trade")
                if number in (0, 50, 51, 119):
                    await point.rollback()
                else:
                    await point.commit()
                    kept.append(added)
            shown = await business.fetchval("SELECT current_setting('orderchain.stored')")
        await relay.settle()
    assert shown.split() == ["1-49", "52-118"]
    assert sorted(await sender.sent(clearing)) == sorted(kept)


async def test_many_messages_of_one_transaction_keep_their_keys_together(sender: Sender) -> None:
    clearing = await sender.set_up(partitions=3)
    business = await sender.connect()
    ids = draw_message_ids(3_000)
    messages = [
        Message(each, "clearing", b"%d" % n, None if n % 3 == 0 else f"k{n % 7}")
        for n, each in enumerate(ids)
    ]
    async with sender.relay() as relay:
        async with relay.transaction(business) as transaction:
            await transaction.add_many(messages)
        await sender.until_status(ids[-1], Status.CONFIRMED)
        await relay.settle()
    records = await sender.records(clearing.topic)
    assert sorted(read_headers(record.headers).message_id for record in records) == ids
    partitions: dict[bytes, set[int]] = {}
    for record in records:
        if record.key is not None:
            partitions.setdefault(record.key, set()).add(record.partition)
    assert {len(found) for found in partitions.values()} == {1}


# ------------------------------------------------------------------------------------- bad input


async def test_add_outside_of_a_transaction_or_of_the_database_is_refused(
    sender: Sender, postgres_server: PostgresServer
) -> None:
    await sender.set_up()
    business = await sender.connect()
    with pytest.raises(SettingError, match="outside of a transaction"):
        await outbox.add(business, "clearing", b"x")
    elsewhere = await asyncpg.connect(postgres_server.dsn(SUPERUSER, "postgres"))
    with pytest.raises(SettingError, match="connection was 'one to a database without the outbox"):
        async with elsewhere.transaction():
            await outbox.add(elsewhere, "clearing", b"x")
    await elsewhere.close()


LAST_ID = UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")


async def test_id_that_is_no_uuidv7_is_refused_at_every_door(sender: Sender) -> None:
    """By its time it finds its partition, and consumers know what they may forget."""
    await sender.set_up()
    business = await sender.connect()
    for message_id in (uuid4(), UUID(int=0), UUID(int=2**128 - 1)):
        async with business.transaction():
            with pytest.raises(MessageError, match="expected a UUIDv7"):
                await outbox.add(business, "clearing", b"x", message_id=message_id)
        add = business.execute("SELECT outbox_add('clearing', 'x', message_id => $1)", message_id)
        with pytest.raises(asyncpg.InvalidParameterValueError, match="expected a UUIDv7") as caught:
            await add
        assert caught.value.column_name == "message_id"
    assert await sender.pending() == []


async def test_id_of_a_strange_clock_goes_to_the_default_partition_and_is_sent(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    business = await sender.connect()
    strange = [UUID("00000000-0000-7000-8000-000000000007"), LAST_ID]
    async with sender.relay():
        async with business.transaction():
            for message_id in strange:
                await outbox.add(business, "clearing", b"x", message_id=message_id)
        await outbox.wake(business)
        for message_id in strange:
            await sender.until_status(message_id, Status.CONFIRMED)
    assert sorted(await sender.sent(clearing)) == strange
    assert await sender.admin.fetchval("SELECT count(*) FROM outbox_message_default") == 2
