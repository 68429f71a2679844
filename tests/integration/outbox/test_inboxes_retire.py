"""Every record says what may still come, so that its consumer's inbox need not grow forever."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import outbox
from chainctl.schema.parts import PARTS
from local_stack.postgres import SUPERUSER
from outbox import (
    Consumer,
    ConsumerConfig,
    Delivery,
    Destination,
    FireAfterCommit,
    Status,
    draw_message_ids,
)
from outbox.callback.checked_sender import CheckedSender
from outbox.callback.config import CheckedConfig
from outbox.message import made_at
from outbox.records import APPLIED, proof_of, read_headers, token_of
from tests.builders.topics import make_topics
from tests.deadlines import deadline

from .conftest import CONSUMER, Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

MESSAGES = 6
LONG_AGO_SECONDS = 2 * 3_600.0


async def floors(sender: Sender, destination: Destination) -> dict[UUID, UUID | None]:
    """Return what each record says may still come, by the record's message id."""
    found = [read_headers(record.headers) for record in await sender.records(destination.topic)]
    return {each.message_id: each.oldest_unfinished for each in found}


def check_floors(shown: dict[UUID, UUID | None], ids: list[UUID]) -> None:
    assert sorted(shown) == ids
    for message_id, floor in shown.items():
        assert floor is not None, "it does not say"
        assert floor <= message_id, "the message itself is not finished"
        assert made_at(message_id) - made_at(floor) < LONG_AGO_SECONDS


@pytest.mark.parametrize("mode", ["relay", "fire after commit", "mode 5"])
async def test_every_record_says_what_may_still_come(sender: Sender, mode: str) -> None:
    destination = await sender.set_up(confirm="none" if mode == "fire after commit" else "required")
    checked = CheckedConfig(sender="payments", check_topic=f"checks.{sender.name}")
    await make_topics(sender.kafka, checked.check_topic)
    business, key, ids = await sender.connect(), await sender.confirm_key(), []
    if mode == "fire after commit":
        async with FireAfterCommit(sender.kafka, [destination]) as fire:
            for _ in range(MESSAGES):
                async with fire.transaction(business) as held:
                    ids.append(held.send("clearing", b"1.25"))
                await fire.finish()
    elif mode == "relay":
        async with sender.relay() as relay:
            for _ in range(MESSAGES):
                async with relay.transaction(business) as transaction:
                    ids.append(await transaction.add("clearing", b"trade"))
                await relay.settle()
                await sender.confirm(destination, ids[-1])
                await sender.until_status(ids[-1], Status.CONSUMED)
    else:
        async with CheckedSender(sender.config(), checked) as mode_5:
            for _ in range(MESSAGES):
                async with mode_5.transaction(business) as transaction:
                    ids.append(await transaction.add("clearing", b"pay"))
                await mode_5.settle()
                proof = proof_of(token_of(key, ids[-1].bytes), CONSUMER, APPLIED, 0)
                await mode_5.confirmed(CONSUMER, {ids[-1]: proof})
            async with mode_5.transaction(business) as transaction:
                ids.append(await transaction.add("clearing", b"to be sent again"))
            await mode_5.settle()
            await mode_5.resend(CONSUMER, ids[-1:])
    check_floors(await floors(sender, destination), ids)


async def test_relay_says_the_oldest_unfinished_message(sender: Sender) -> None:
    destination = await sender.set_up()
    business = await sender.connect()
    (old,) = aged_ids(days=2)
    async with business.transaction():
        await outbox.add(business, "clearing", b"old", message_id=old)
    async with sender.relay() as relay:
        await relay.sweep()
        await relay.settle()
        async with relay.transaction(business) as transaction:
            new = await transaction.add("clearing", b"new")
        await relay.settle()
    assert await floors(sender, destination) == {old: old, new: old}


async def test_inbox_of_a_quiet_destination_drops_its_old_days(sender: Sender) -> None:
    """Sender, broker and consumer as they are; nothing of the sender's is unfinished."""
    destination = await sender.set_up(partitions=3)  # two of which never get a message
    async with sender.admin.transaction():
        await sender.admin.execute(PARTS["inbox"].text())
    business = await sender.connect()
    config = ConsumerConfig(
        name=CONSUMER,
        topics=(destination.topic,),
        kafka=sender.kafka,
        database=sender.dsns[SUPERUSER],
        upkeep_seconds=0.1,
    )
    consumer = Consumer(config)

    async def apply(_: Delivery, __: Any) -> None:
        """The effect."""

    async with sender.relay() as relay, consumer:
        (old,) = aged_ids(days=10)
        await applied_long_ago(sender, old)
        work = asyncio.create_task(consumer.run(apply))
        async with relay.transaction(business) as transaction:
            new = await transaction.add("clearing", b"trade")
        await sender.until_status(new, Status.CONSUMED)
        await sender.until_true("SELECT array_agg(message_id) = ARRAY[$1::uuid] FROM inbox", new)
        consumer.stop()
        async with deadline():
            await work
    # What it remembers no longer is not worked on, should it come after all.
    horizon = await sender.admin.fetchval("SELECT horizon FROM inbox_consumer")
    assert old < horizon < new


def aged_ids(*, days: int) -> list[UUID]:
    """Return a message id that was drawn so long ago."""
    (drawn,) = draw_message_ids(1)
    at = datetime.now(UTC) - timedelta(days=days)
    return [UUID(int=int(at.timestamp() * 1_000) << 80 | drawn.int & (1 << 80) - 1)]


async def applied_long_ago(sender: Sender, message_id: UUID) -> None:
    await sender.admin.execute(
        "INSERT INTO inbox (message_id, consumer_id, topic, topic_partition, record_offset,"
        " received_at) SELECT $1, consumer_id, 't', 0, 0, now() FROM inbox_consumer",
        message_id,
    )
