"""Mode 3: status with the broker's confirm, and a sweep that sends again what is due."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

import outbox
from local_stack import KafkaServer
from outbox import Destination, Message, Status, draw_message_ids, save_destinations
from outbox.records import read_headers
from outbox.roles import OUTBOX_OPERATOR
from outbox.sender import message_sender
from tests.builders.listeners import proxied_ports
from tests.builders.topics import make_topics
from tests.deadlines import deadline
from tests.faults.proxy import Proxy, is_produce, kafka_requests

from ..conftest import Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@pytest.mark.nightly
async def test_broker_away_for_minutes_is_no_try_and_all_arrives_after_it(
    sender_to_break: Sender, kafka_to_break: KafkaServer
) -> None:
    sender = sender_to_break
    clearing = await sender.set_up(tries_max=1)
    async with sender.relay() as relay:
        await asyncio.to_thread(kafka_to_break.kill)
        ids = await sender.store(50)
        async with deadline():
            while relay.stats().released < 50:  # noqa: ASYNC110 - a counter, not an event
                await asyncio.sleep(0.02)
        # As if each of these rounds were a minute later: what is away is not even tried.
        for _ in range(5):
            await sender.let_time_pass()
            await relay.sweep()
        assert relay.stats().swept == 50
        assert {row["send_count"] for row in await sender.pending()} == {0}
        await asyncio.to_thread(kafka_to_break.start)
        await sender.until_status(ids[-1], Status.CONFIRMED)
        await relay.settle()
    assert set((await sender.statuses()).values()) == {Status.CONFIRMED}
    assert {row["send_count"] for row in await sender.pending()} == {1}
    assert set(await sender.sent(clearing)) == set(ids)


async def test_acknowledgement_lost_after_the_broker_stored_it_leads_to_a_duplicate(
    sender_to_break: Sender, kafka_to_break: KafkaServer
) -> None:
    sender = sender_to_break
    clearing = await sender.set_up()
    port, proxy_port = proxied_ports(kafka_to_break.config)
    async with Proxy(port, kafka_requests, port=proxy_port) as proxy:
        config = {"kafka": f"127.0.0.1:{proxy.port}", "send_seconds": 5.0}
        async with sender.relay(**config) as relay:
            trap = proxy.set_trap(is_produce, lets_through=True)
            (message_id,) = await sender.store(1)
            await trap.wait()
            assert await sender.sent(clearing) == [message_id]  # the broker has it
            assert (await sender.statuses())[message_id] is Status.INIT
            trap.cut()
            # The client itself tries once more on a new connection, within the same try.
            await sender.until_status(message_id, Status.CONFIRMED)
            await relay.settle()
        (row,) = await sender.pending()
        assert row["send_count"] == 1
    assert await sender.sent(clearing) == [message_id] * 2


@pytest.mark.guarantee("G10", "G16")
async def test_tries_are_counted_exactly_with_two_sweepers_and_end_in_abnormal(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    clearing = await sender.set_up(tries_max=3)
    count = 200
    async with AsyncExitStack() as stack:
        # So few rows that both have many rounds.
        few = [sender.relay(sweep_rows_max=7) for _ in range(2)]
        relays = [await stack.enter_async_context(each) for each in few]
        ids = await sender.store(count)
        await sender.until_status(ids[-1], Status.CONFIRMED)
        for _ in range(5):  # two more than there are tries
            await asyncio.gather(*(relay.settle() for relay in relays))
            await sender.let_time_pass()
            await asyncio.gather(*(relay.sweep() for relay in relays for _ in range(2)))
        await asyncio.gather(*(relay.settle() for relay in relays))
        assert sum(relay.stats().swept for relay in relays) == 3 * count
        assert sum(relay.stats().resent for relay in relays) == 2 * count
        assert sum(relay.stats().abnormal for relay in relays) == count
    rows = await sender.pending()
    assert {(row["status"], row["send_count"]) for row in rows} == {(Status.ABNORMAL, 3)}
    assert {row["last_error"] for row in rows} == {"no end after 3 tries"}
    assert set(Counter(await sender.sent(clearing)).values()) == {3}
    lines = [each.getMessage() for each in caplog.records if "is abnormal" in each.getMessage()]
    assert sorted(line.split()[1] for line in lines) == sorted(map(str, ids))


async def test_topic_that_refuses_a_message_does_not_harm_the_others(sender: Sender) -> None:
    clearing = await sender.set_up(tries_max=1)
    narrow = {"max.message.bytes": "2000"}
    await make_topics(sender.kafka, f"small.{sender.name}", configs=narrow)
    await sender.set_up("small", confirm="none", topic="other." + sender.name, tries_max=1)
    await sender.admin.execute(
        "UPDATE outbox_destination SET topic = $1 WHERE destination = 'small'",
        "small." + sender.name,
    )
    business = await sender.connect()
    large, *small = draw_message_ids(40)
    async with sender.relay() as relay:
        async with business.transaction():
            await outbox.add(business, "small", bytes(5_000), message_id=large)
            await outbox.add_many(business, [Message(each, "small", bytes(300)) for each in small])
        await outbox.wake(business)
        await sender.until_status(small[-1], Status.CONFIRMED)
        await relay.settle()
        (row,) = await sender.pending()
        assert row["message_id"] == large
        assert "MessageSizeTooLarge" in row["last_error"]
        assert row["send_count"] == 1  # the broker was there: that was a try
        await sender.let_time_pass()
        await relay.sweep()
        assert (await sender.statuses())[large] is Status.ABNORMAL
    done = {row["message_id"] for row in await sender.done()}
    assert done == set(small)
    assert await sender.sent(clearing) == []


async def test_send_that_fails_leaves_the_sends_to_other_destinations_under_way(
    sender: Sender,
) -> None:
    await make_topics(sender.kafka, f"small.{sender.name}", configs={"max.message.bytes": "2000"})
    small = Destination(name="small", topic=f"small.{sender.name}", confirm="none", tries_max=1)
    await save_destinations(await sender.connect(OUTBOX_OPERATOR), [small])
    await sender.set_up()
    business = await sender.connect()
    refused, *large = draw_message_ids(81)
    async with sender.relay() as relay:
        async with business.transaction():
            # Dozens of batches to one partition, which are sent one after the other.
            for each in large:
                await outbox.add(business, "clearing", bytes(250_000), message_id=each)
            await outbox.add(business, "small", bytes(5_000), message_id=refused)
        await outbox.wake(business)
        await sender.until_counted(relay, swept=81)
        await relay.settle()
        assert relay.stats().failed == 1
    rows = {row["message_id"]: row for row in await sender.pending()}
    assert "MessageSizeTooLarge" in rows.pop(refused)["last_error"]
    assert {(row["status"], row["send_count"]) for row in rows.values()} == {(Status.CONFIRMED, 1)}
    assert len(rows) == 80


async def test_clock_ahead_of_the_brokers_counts_no_try(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    clearing = await sender.set_up(tries_max=1)  # on a topic of the broker's defaults
    made = Destination(name="made", topic=f"made.{sender.name}", confirm="none", tries_max=1)
    operator = await sender.connect(OUTBOX_OPERATOR)
    await save_destinations(operator, [made], create_topics=sender.kafka)
    ahead = SimpleNamespace(time_ns=lambda: time.time_ns() + 2 * 3_600 * 10**9)
    monkeypatch.setattr(message_sender, "time", ahead)
    async with sender.relay() as relay:
        (made_id,) = await sender.store(destination="made")
        await sender.until_true("SELECT count(*) = 1 FROM outbox_done")
        (message_id,) = await sender.store()
        await sender.until_true("SELECT reason LIKE '%clock%' FROM outbox_trouble")
        await relay.settle()
        (row,) = await sender.pending()
        assert (row["status"], row["send_count"]) == (Status.INIT, 0)
        assert "InvalidTimestamp" in row["last_error"]
        monkeypatch.undo()
        relay._sender.topic_errors.is_over(clearing.topic)  # as after its pause
        await sender.until_status(message_id, Status.CONFIRMED)
        await relay.settle()
    assert await sender.sent(clearing) == [message_id]
    (record,) = await sender.records(made.topic)
    assert read_headers(record.headers).message_id == made_id
    assert record.timestamp <= time.time_ns() // 10**6  # the broker's
