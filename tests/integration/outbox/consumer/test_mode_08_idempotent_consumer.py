"""Mode 8: the id is recorded in the transaction of the effect; a filter before it saves work."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chain_kernel.errors import ConnectError, SchemaError
from outbox.consumer.consumer import Consumer
from outbox.consumer.decisions import Seen
from outbox.consumer.delivery import Delivery
from outbox.consumer.filters import Filter, MemoryFilter, RedisFilter, RedisFilterConfig
from tests.deadlines import deadline

from ..hand_clock import HandClock
from .redis_server import RedisServer
from .rig import Rig, apply, apply_many


async def test_redelivery_long_after_processing_does_no_work_and_confirms_again(rig: Rig) -> None:
    message, other, last = rig.message("one"), rig.message("two"), rig.message("three")
    await rig.send(message, other)
    await rig.work_off(rig.consumer(), until=other)
    await rig.send(message, last)
    # Another process: nothing of the first one's memory is left, the inbox alone knows.
    again = rig.consumer()
    assert await rig.work_off(again, until=last) == ["three"]
    assert await rig.effects() == {"one": 1, "two": 1, "three": 1}
    assert again.stats().repeated == 1
    assert (await rig.applied_ids(4))[message.message_id.bytes] == 2


async def test_batch_with_one_message_in_other_hands_does_not_wait_for_it(rig: Rig) -> None:
    held, last = rig.message("held"), rig.message("last")
    others = [rig.message(f"note {number}") for number in range(5)]
    consumer = rig.consumer(statement_seconds=0.5)
    async with consumer:
        pass  # makes the consumer's row, by which the other worker claims
    number = await rig.admin.fetchval("SELECT consumer_id FROM inbox_consumer")
    notes: list[str] = []

    async def handler(deliveries: Sequence[Delivery], connection: Any) -> None:
        await apply_many(deliveries, connection)
        notes.extend(delivery.payload.decode() for delivery in deliveries)
        if notes[-1] == "last":
            ends.set()
        if notes[-1] == "held":
            consumer.stop()

    ends = asyncio.Event()
    await rig.send(others[0], held, *others[1:], last)
    # Another worker works on it, in a transaction that stays open.
    working = rig.admin.transaction()
    await working.start()
    await rig.admin.execute(
        "INSERT INTO inbox VALUES ($1, $2, $3, 0, 1, now())",
        held.message_id, number, rig.topic,
    )  # fmt: skip
    consumer = rig.consumer(statement_seconds=0.5)
    async with deadline(), consumer:
        running = asyncio.create_task(consumer.run_many(handler))
        await ends.wait()
        assert sorted(notes) == ["last", *(f"note {number}" for number in range(5))]
        await working.rollback()  # it failed: now the message is ours
        await running
    assert notes[-1] == "held"
    assert max((await rig.effects()).values()) == 1


@pytest.mark.parametrize("marked", [(0, 1), (1,)])
async def test_messages_of_a_key_stay_in_order_with_marks_of_a_killed_worker(
    rig: Rig, marked: tuple[int, ...]
) -> None:
    messages = [rig.message(note, "K") for note in "123"]
    filtering = MemoryFilter()
    await filtering.see([messages[at].message_id for at in marked])  # and no worker finishes them
    await rig.send(*messages)
    notes: list[str] = []

    async def handler(deliveries: Sequence[Delivery], connection: Any) -> None:
        notes.extend(delivery.payload.decode() for delivery in deliveries)
        if len(notes) == len(messages):
            consumer.stop()

    consumer = rig.consumer(filter=filtering)
    async with deadline(), consumer:
        await consumer.run_many(handler)
    assert notes == ["1", "2", "3"]


async def test_failed_handler_clears_its_mark_and_asks_for_a_retry(rig: Rig) -> None:
    message = rig.message("one")
    filtering = MemoryFilter()
    clock = HandClock(1_800_000_000_000_000_000)
    consumer = rig.consumer(filter=filtering, clock=clock)
    await rig.send(message)
    failed = asyncio.Event()

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        if delivery.failures == 0:
            failed.set()
            raise ValueError("not today")

    working = asyncio.create_task(rig.work_off(consumer, until=message, handle=handler))
    async with deadline():
        await failed.wait()
        (confirm,) = await rig.confirms(1)
        assert confirm.until_unix_ns == clock.now_ns + 10_000_000_000
        assert await filtering.see([message.message_id]) == [Seen.NEW]
        await filtering.clear([message.message_id])
        clock.now_ns += 10_000_000_000
        await working
    assert await rig.effects() == {"one": 1}


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_repeat_is_known_from_redis_and_from_the_inbox_once_redis_is_flushed(
    rig: Rig, redis_server: RedisServer, is_flushed: bool
) -> None:
    message, last = rig.message("one"), rig.message("last")
    await rig.send(message)
    await rig.work_off(rig.consumer(filter=RedisFilter(redis_config(redis_server))), until=message)
    if is_flushed:
        assert redis_server.command("DBSIZE") != b":0\r\n"
        assert redis_server.command("FLUSHALL") == b"+OK\r\n"
    else:
        await rig.admin.execute("DELETE FROM inbox")
    await rig.send(message, last)
    again = rig.consumer(filter=RedisFilter(redis_config(redis_server)))
    assert await rig.work_off(again, until=last) == ["last"]
    assert again.stats().repeated == 1
    assert await rig.effects() == {"one": 1, "last": 1}


async def test_redis_killed_in_mid_run_leaves_the_decision_to_the_inbox(
    rig: Rig, redis_server: RedisServer
) -> None:
    messages = [rig.message(f"note {number}") for number in range(20)]
    last = rig.message("last")
    await rig.send(*messages, *messages, last)
    filtering = RedisFilter(redis_config(redis_server))

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        if delivery.payload == b"note 10":
            redis_server.kill()

    consumer = rig.consumer(filter=filtering)
    await rig.work_off(consumer, until=last, handle=handler)
    assert await rig.effects() == {f"note {number}": 1 for number in range(20)} | {"last": 1}
    assert consumer.stats().repeated == 20
    assert consumer.stats().failures == 0


async def test_idempotent_handler_works_without_an_inbox_if_it_says_so(rig: Rig) -> None:
    message, last = rig.message("one"), rig.message("last")
    await rig.send(message, message, last)

    async def handler(delivery: Delivery, connection: Any) -> None:
        assert connection is None

    consumer = rig.consumer(idempotent=True, filter=Filter())
    notes = await rig.work_off(consumer, until=last, handle=handler)
    assert notes == ["one", "one", "last"]  # it runs again, as it said that it may
    assert await rig.admin.fetchval("SELECT count(*) FROM inbox") == 0
    assert (await rig.applied_ids(3))[message.message_id.bytes] == 2


async def test_message_older_than_the_inbox_is_put_aside_and_not_worked_on(rig: Rig) -> None:
    old, new = rig.message("old"), rig.message("new")
    consumer = rig.consumer()
    async with consumer:
        pass  # makes the consumer's row
    await rig.admin.execute("UPDATE inbox_consumer SET horizon = $1", new.message_id)
    await rig.send(old, new)
    assert await rig.work_off(rig.consumer(), until=new) == ["new"]
    dead = await rig.admin.fetch("SELECT message_id, reason, failures FROM inbox_dead")
    assert [tuple(row) for row in dead] == [(old.message_id, "older than the inbox", 0)]
    assert old.message_id.bytes not in await rig.applied_ids(1)


async def test_record_that_is_no_message_is_counted_and_passed_over(rig: Rig) -> None:
    last = rig.message("last")
    await rig.send_raw(b"what is this", [])
    await rig.send_raw(b"", [("orchestra-message-id", b"x")])
    await rig.send_raw(b"x", [("orderchain-message-id", b"no uuid at all")])
    await rig.send(last)
    consumer = rig.consumer()
    assert await rig.work_off(consumer, until=last) == ["last"]
    assert consumer.stats().bad_records == 3
    assert await rig.committed() == 4


async def test_consumer_without_its_tables_is_refused(rig: Rig) -> None:
    await rig.admin.execute("DROP TABLE inbox_version")
    with pytest.raises(SchemaError, match="schema"):
        await rig.consumer().start()


async def test_consumer_without_a_broker_is_refused_in_one_line(rig: Rig) -> None:
    nobody = rig.config(kafka="127.0.0.1:9", connect_seconds=2.0)
    with pytest.raises(ConnectError, match="kafka"):
        await Consumer(nobody).start()


def redis_config(server: RedisServer) -> RedisFilterConfig:
    return RedisFilterConfig(url=server.url, consumer="clearing", answer_seconds=5.0)
