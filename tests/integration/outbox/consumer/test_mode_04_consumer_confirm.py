"""Mode 4, the consumer's half: a new message says applied, after the consumer's own commit."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from outbox import Confirm, Progress, draw_message_ids
from outbox.consumer import confirm_loop
from outbox.consumer.confirm_loop import ConfirmSender
from outbox.consumer.delivery import Delivery
from outbox.records import APPLIED, RETRYING
from tests.deadlines import deadline

from .rig import TOKEN, Rig, apply, apply_many


async def test_confirm_follows_the_commit_of_the_effect(rig: Rig) -> None:
    message = rig.message("one")
    offset = await rig.send(message, partition=2)
    await rig.work_off(rig.consumer(), until=message)
    (confirm,) = await rig.confirms(1)
    assert confirm.message_id == message.message_id.bytes
    assert (confirm.kind, confirm.until_unix_ns) == (APPLIED, 0)
    assert (confirm.partition, confirm.offset) == (2, offset)


async def test_nothing_is_confirmed_as_applied_before_the_commit(rig: Rig) -> None:
    """The handler fails behind its effect: what is sent is a retry, never an effect."""
    message = rig.message("one")
    await rig.send(message)
    failed = asyncio.Event()

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        failed.set()
        raise ValueError("no")

    async with deadline(), rig.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handler))
        await failed.wait()
        confirms = await rig.confirms(1)
        consumer.stop()
        await running
    assert [confirm.kind for confirm in confirms] != [APPLIED]
    assert await rig.effects() == {}


async def test_consumer_is_heard_of_with_its_progress_while_a_handler_works(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.consumer.attempts.HEARTBEAT_SECONDS", 0.05)
    done, long = rig.message("done"), rig.message("long")
    await rig.send(done, long)
    is_heard = asyncio.Event()

    async def handler(delivery: Delivery, connection: Any) -> None:
        if delivery.message_id == long.message_id:
            await is_heard.wait()
            consumer.stop()
        await apply(delivery, connection)

    async with deadline(), rig.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handler))
        records = await rig.confirm_records(3)
        is_heard.set()
        await running
    (first, *others) = [confirm for record in records for confirm in record.confirms]
    assert (first.message_id, first.kind) == (done.message_id.bytes, APPLIED)
    assert {(one.message_id, one.kind) for one in others} == {(long.message_id.bytes, RETRYING)}
    assert Progress(rig.topic, 0, 1) in records[-1].progress
    assert await rig.effects() == {"done": 1, "long": 1}


async def test_confirms_of_a_batch_travel_together_with_the_progress(rig: Rig) -> None:
    messages = [rig.message(f"note {number}") for number in range(500)]
    for message in messages:
        await rig.producer.send(
            rig.topic, message.payload, partition=1,
            headers=[
                ("orderchain-message-id", str(message.message_id).encode()),
                ("orderchain-destination", b"clearing"),
                ("orderchain-confirm-topic", rig.destination.confirm_topic.encode()),
                ("orderchain-confirm-token", TOKEN.hex().encode()),
            ],
        )  # fmt: skip
    await rig.producer.flush()
    count = 0

    async def handler(deliveries: Sequence[Delivery], connection: Any) -> None:
        nonlocal count
        await apply_many(deliveries, connection)
        count += len(deliveries)
        if count == len(messages):
            consumer.stop()

    consumer = rig.consumer()
    async with deadline(), consumer:
        await consumer.run_many(handler)
    records = await rig.confirm_records(500)
    assert len(records) < 50  # many a record
    shown: set[int] = set()
    for record in records:
        shown.update(confirm.offset for confirm in record.confirms)
        for progress in record.progress:
            if (progress.topic, progress.partition) == (rig.topic, 1):
                # What lies below the progress was confirmed with it, or before it: a sender that
                # finds an unconfirmed one there knows that it is lost.
                assert shown.issuperset(range(progress.offset))
    assert shown == set(range(500))


async def test_confirms_outlast_a_confirm_topic_that_is_not_there_yet(rig: Rig) -> None:
    """The effect does not wait for the confirm; the confirm waits until it can be sent."""
    message, last = rig.message("one"), rig.message("last")
    missing = f"{rig.topic}.later"
    await rig.send_raw(
        message.payload,
        [
            ("orderchain-message-id", str(message.message_id).encode()),
            ("orderchain-destination", b"clearing"),
            ("orderchain-confirm-topic", missing.encode()),
            ("orderchain-confirm-token", TOKEN.hex().encode()),
        ],
    )
    await rig.send(last)
    topics = (missing, rig.destination.confirm_topic)
    consumer = rig.consumer(request_seconds=1.0, confirm_topics=topics)
    assert await rig.work_off(consumer, until=last) == ["one", "last"]
    assert await rig.effects() == {"one": 1, "last": 1}
    assert await rig.committed() == 2


@pytest.fixture
async def sender(rig: Rig) -> AsyncIterator[ConfirmSender]:
    made = ConfirmSender(rig.config(request_seconds=1.0))
    await made.start()
    yield made
    await made.close()


def a_confirm() -> Confirm:
    return Confirm(draw_message_ids(1)[0].bytes, APPLIED, 0, 0, 0, bytes(16))


async def test_progress_travels_with_the_confirms_of_its_own_topic_alone(
    rig: Rig, sender: ConfirmSender
) -> None:
    """Past confirms that wait for another topic, it would have their messages taken for lost."""
    other, shared = f"{rig.topic}.other", f"{rig.topic}.shared"
    for source in (other, shared):
        sender.add(f"{rig.topic}.missing", a_confirm(), source)
    for source in (rig.topic, shared):
        sender.add(rig.destination.confirm_topic, a_confirm(), source)
    await sender.flush({(topic, 0): 1 for topic in (rig.topic, other, shared)})
    (record,) = await rig.confirm_records(2)
    assert record.progress == [Progress(rig.topic, 0, 1)]


async def test_progress_in_more_partitions_than_a_record_holds_is_reported_in_turn(
    rig: Rig, sender: ConfirmSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm_loop, "RECORD_PARTITIONS_MAX", 2)
    for _ in range(3):
        sender.add(rig.destination.confirm_topic, a_confirm(), rig.topic)
        await sender.flush({(rig.topic, number): 1 for number in range(3)})
    records = await rig.confirm_records(3)
    shown = [[line.partition for line in record.progress] for record in records]
    assert shown == [[0, 1], [2, 0], [1, 2]]
