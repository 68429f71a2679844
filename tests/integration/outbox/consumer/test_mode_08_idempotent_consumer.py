"""Mode 8: the id is recorded in the transaction of the effect; a filter before it saves work."""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import pytest
from msgspec.structs import replace

from chain_kernel.errors import ConnectError, SchemaError
from outbox.consumer.consumer import Consumer
from outbox.consumer.decisions import Seen
from outbox.consumer.delivery import Delivery
from outbox.consumer.filters import Filter, MemoryFilter, RedisFilter, RedisFilterConfig
from outbox.message import Message
from tests.deadlines import deadline
from tests.faults.proxy import Proxy, Trap, is_commit, postgres_requests

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


@pytest.mark.parametrize("filter_of", [Filter, MemoryFilter])
async def test_redelivery_after_processing_in_the_same_process_does_no_work(
    rig: Rig, filter_of: Any
) -> None:
    message, last = rig.message("one"), rig.message("last")
    await rig.send(message, message, message, last)
    consumer = rig.consumer(filter=filter_of())
    assert await rig.work_off(consumer, until=last) == ["one", "last"]
    assert await rig.effects() == {"one": 1, "last": 1}
    assert consumer.stats().repeated == 2
    assert (await rig.applied_ids(4))[message.message_id.bytes] == 3


async def test_redelivery_during_processing_waits_for_its_end(rig: Rig) -> None:
    message, last = rig.message("one"), rig.message("last")
    await rig.send(message)
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(delivery: Delivery, connection: Any) -> None:
        started.set()
        await go_on.wait()
        await apply(delivery, connection)

    consumer = rig.consumer(at_once=3, filter=Filter())
    working = asyncio.create_task(rig.work_off(consumer, until=last, handle=handler))
    async with deadline():
        await started.wait()
        await rig.send(message, last)
        go_on.set()
        notes = await working
    assert sorted(notes) == ["last", "one"]
    assert await rig.effects() == {"one": 1, "last": 1}
    assert (await rig.applied_ids(2))[message.message_id.bytes] >= 1


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("does_the_first_fail", [False, True])
async def test_two_workers_on_one_id_give_one_effect(rig: Rig, does_the_first_fail: bool) -> None:
    """The second one waits for the first one's transaction, and takes over if that fails."""
    message = rig.message("one")
    await rig.send(message, partition=0)
    await rig.send(message, partition=1)
    started, go_on = asyncio.Event(), asyncio.Event()
    calls = 0

    async def handler(delivery: Delivery, connection: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            started.set()
            await go_on.wait()
            if does_the_first_fail:
                raise asyncpg.DeadlockDetectedError("another transaction went on")
        await apply(delivery, connection)

    # Two consumers of one name, each with partitions of its own: as two processes have them.
    first = rig.consumer(filter=Filter())
    second = Consumer(rig.config(start_at=rig.config().start_at), filter=Filter())
    async with deadline(), first, second:
        running = [asyncio.create_task(one.run(handler)) for one in (first, second)]
        await started.wait()
        go_on.set()
        assert (await rig.applied_ids(2))[message.message_id.bytes] == 2
        first.stop()
        second.stop()
        await asyncio.gather(*running)
    assert await rig.effects() == {"one": 1}
    assert calls == (2 if does_the_first_fail else 1)


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


async def test_seen_but_not_finished_is_not_taken_for_done(rig: Rig) -> None:
    """A mark of a worker that was killed delays its message, and does not lose it."""
    message = rig.message("one")
    filtering = MemoryFilter()
    assert await filtering.see([message.message_id]) == [Seen.NEW]  # and no worker finishes it
    await rig.send(message)
    consumer = rig.consumer(filter=filtering)
    await rig.work_off(consumer, until=message)
    assert consumer.stats().waits == 1
    assert await rig.effects() == {"one": 1}


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


async def test_rebalance_in_mid_batch_gives_one_effect_each(rig: Rig) -> None:
    messages = [rig.message(f"note {number}") for number in range(300)]
    for number, message in enumerate(messages):
        await rig.send(message, partition=number % 3)
    first, second = (rig.consumer(batch_max=50, filter=Filter()) for _ in range(2))
    in_mid_batch, go_on = asyncio.Event(), asyncio.Event()
    applied: set[UUID] = set()

    async def handler(deliveries: Sequence[Delivery], connection: Any) -> None:
        await apply_many(deliveries, connection)
        in_mid_batch.set()
        await go_on.wait()
        applied.update(delivery.message_id for delivery in deliveries)
        if len(applied) == len(messages):
            first.stop()
            second.stop()

    async with deadline(), first:
        running = [asyncio.create_task(first.run_many(handler))]
        await in_mid_batch.wait()
        async with second:  # takes partitions over, of which messages are in the first one's hands
            running.append(asyncio.create_task(second.run_many(handler)))
            go_on.set()
            await asyncio.gather(*running)
    effects = await rig.effects()
    assert effects == {f"note {number}": 1 for number in range(300)}
    assert set(await rig.applied_ids(300)) == {message.message_id.bytes for message in messages}


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


@pytest.mark.parametrize("did_it_commit", [False, True])
async def test_lost_answer_to_a_commit_is_settled_by_the_inbox(
    rig: Rig, did_it_commit: bool
) -> None:
    """The message is claimed again: it is in the inbox, or it is not."""
    message, last = rig.message("one"), rig.message("last")
    await rig.send(message, last)
    address = urlsplit(rig.database)
    assert address.port is not None
    async with Proxy(address.port, postgres_requests) as proxy:
        through = f"{address.username}:{address.password}@127.0.0.1:{proxy.port}"
        consumer = rig.consumer(database=address._replace(netloc=through).geturl())
        started = asyncio.Event()
        trap: list[Trap] = []

        async def handler(delivery: Delivery, connection: Any) -> None:
            await apply(delivery, connection)
            if not trap:
                trap.append(proxy.set_trap(is_commit, lets_through=did_it_commit))
                started.set()

        working = asyncio.create_task(rig.work_off(consumer, until=last, handle=handler))
        async with deadline():
            await started.wait()
            await trap[0].wait()
            trap[0].cut()
            notes = await working
    assert notes == (["one", "last"] if did_it_commit else ["one", "one", "last"])
    assert await rig.effects() == {"one": 1, "last": 1}
    assert (await rig.applied_ids(2))[message.message_id.bytes] == 1
    assert consumer.stats().failures == 0
    assert consumer.stats().interruptions == 1


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


async def test_backlog_older_than_the_retention_is_worked_on_however_far_others_are(
    rig: Rig,
) -> None:
    week, old, applied = (aged(rig.message(f"{days} days"), days) for days in (7, 6, 5))
    new = rig.message("new")
    floor = "SELECT floor FROM inbox_partition WHERE topic = $1 AND topic_partition = $2"

    async def until_reported(partition: int, message: Message) -> None:
        async with deadline():
            while await rig.admin.fetchval(floor, rig.topic, partition) != message.message_id:
                pass

    await rig.send(week, applied, oldest=week.message_id)
    await rig.work_off(rig.consumer(), until=applied)
    consumer = rig.consumer(upkeep_seconds=0.05)
    async with consumer:  # it receives, and handles nothing yet
        await rig.send(old, oldest=old.message_id)
        await until_reported(0, old)
        await rig.send(new, partition=1, oldest=new.message_id)
        await until_reported(1, new)
        # What is older than the backlog is dropped, although partition 2 has no message at all.
        async with deadline():
            while await rig.admin.fetchval("SELECT count(*) = 2 FROM inbox"):
                pass
        assert await rig.run_until(consumer, until=new) == ["6 days", "new"]
        # Partition 0 is read to its end: what its last record said no longer counts.
        async with deadline():
            while await rig.admin.fetchval("SELECT count(*) > 1 FROM inbox"):
                pass


def aged(message: Message, days: int) -> Message:
    """Return a message as if its id had been drawn so long ago."""
    past = days * 86_400_000 << 80
    return replace(message, message_id=UUID(int=message.message_id.int - past))


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
