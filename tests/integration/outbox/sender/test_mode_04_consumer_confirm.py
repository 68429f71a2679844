"""Mode 4, the sender's side: a confirm of the consumer's own moves the delivery to `consumed`.

The consumer here is a plain producer of confirms, so that it can lose, repeat and forge them.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from local_stack import KafkaServer
from outbox import Destination, Message, Relay, Status, draw_message_ids
from outbox.sender.transaction import store_messages
from tests.builders.topics import damage_head

from ..conftest import CONSUMER, Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@pytest.mark.guarantee("G6", "G10")
async def test_confirm_moves_a_delivery_to_consumed_once_and_for_good(sender: Sender) -> None:
    clearing = await sender.set_up()
    async with sender.relay() as relay:
        ids = await sender.store(300)
        await sender.until_status(ids[-1], Status.CONFIRMED)
        await relay.settle()
        await sender.confirm(clearing, *ids)
        await sender.until_status(ids[-1], Status.CONSUMED)
        await sender.until_counted(relay, consumed=300)
        assert (relay.stats().consumed, relay.stats().early, relay.stats().unknown) == (300, 0, 0)
        await sender.confirm(clearing, *ids)  # at least once, like every message
        await sender.until_counted(relay, repeated=300)
        assert (relay.stats().consumed, relay.stats().unknown) == (300, 0)
        await sender.let_time_pass()
        assert await relay.sweep() == 0
    assert await sender.pending() == []
    assert {(row["status"], row["send_count"]) for row in await sender.done()} == {(2, 1)}
    assert sorted(await sender.sent(clearing)) == ids


async def test_confirm_after_abnormal_is_taken(sender: Sender) -> None:
    clearing = await sender.set_up(tries_max=1)
    async with sender.relay() as relay:
        (message_id,) = await sender.store()
        await sender.until_status(message_id, Status.CONFIRMED)
        await relay.settle()
        await sender.let_time_pass()
        await relay.sweep()
        assert (await sender.statuses())[message_id] is Status.ABNORMAL
        await sender.confirm(clearing, message_id)
        await sender.until_status(message_id, Status.CONSUMED)
        await sender.until_counted(relay, late=1)
        assert relay.stats().late == 1


@asynccontextmanager
async def acknowledged(sender: Sender) -> AsyncIterator[tuple[Relay, Destination, UUID]]:
    """A message whose acknowledgement is not written yet."""
    clearing = await sender.set_up()
    async with sender.relay(ack_linger_seconds=10.0) as relay:
        (message_id,) = await sender.store()
        await sender.until_counted(relay, sent=1)
        yield relay, clearing, message_id


async def test_confirm_that_comes_before_the_acknowledgement_was_written_spares_that_write(
    sender: Sender,
) -> None:
    async with acknowledged(sender) as (relay, clearing, message_id):
        assert (await sender.statuses())[message_id] is Status.INIT
        await sender.confirm(clearing, message_id)
        await sender.until_status(message_id, Status.CONSUMED)
        await sender.until_counted(relay, early=1)
        assert (relay.stats().early, relay.stats().acks_overtaken) == (1, 1)
        await relay.settle()
        assert relay.stats().acks_written == 0


async def test_confirm_of_a_reader_that_is_not_listed_leaves_the_acknowledgement(
    sender: Sender,
) -> None:
    async with acknowledged(sender) as (relay, clearing, message_id):
        await sender.confirm(clearing, message_id, consumer="somebody-else")
        await sender.until_counted(relay, unknown=1)
        await relay.settle()
    (row,) = await sender.pending()
    assert (row["status"], row["offset"], row["send_count"]) == (Status.CONFIRMED, 0, 1)


async def test_confirm_for_an_unknown_id_and_records_of_garbage_are_counted_and_harmless(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    async with sender.relay() as relay:
        (message_id,) = await sender.store()
        await sender.until_status(message_id, Status.CONFIRMED)
        await sender.send_record(clearing.confirm_topic, b"garbage")
        await sender.send_record(clearing.confirm_topic, b"")
        await sender.confirm(clearing, *draw_message_ids(3))
        await sender.confirm(clearing, message_id, consumer="somebody-else")
        await sender.until_counted(relay, unknown=4)
        assert (await sender.statuses())[message_id] is Status.CONFIRMED
        await sender.confirm(clearing, message_id)
        await sender.until_status(message_id, Status.CONSUMED)
        assert relay.stats().bad_confirms == {"content": 2}
        await sender.until_counted(relay, consumed=1)
        assert relay.stats().consumed == 1


async def test_message_that_its_consumer_tries_again_itself_is_not_sent_meanwhile(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    async with sender.relay() as relay:
        (message_id,) = await sender.store()
        await sender.until_status(message_id, Status.CONFIRMED)
        await relay.settle()
        until_ns = time.time_ns() + 3_600 * 10**9
        await sender.confirm(clearing, message_id, kind=1, until_ns=until_ns)
        await sender.until_counted(relay, retrying=1)
        (row,) = await sender.pending()
        assert row["next_send_at"].timestamp() >= until_ns / 1e9 - 0.001
        assert (row["status"], row["send_count"]) == (Status.CONFIRMED, 1)
        assert await relay.sweep() == 0
        # A nonsensical time neither hides a message forever nor breaks the intake.
        await sender.confirm(clearing, message_id, kind=1, until_ns=2**63 - 1)
        await sender.until_counted(relay, retrying=2)
        bound = "SELECT next_send_at < now() + interval '8 days' FROM outbox_pending"
        assert await sender.admin.fetchval(bound)
        await sender.confirm(clearing, message_id)
        await sender.until_status(message_id, Status.CONSUMED)


async def test_what_was_never_decided_is_not_confirmed_by_anybody(sender: Sender) -> None:
    clearing = await sender.set_up()
    business = await sender.connect()
    (message_id,) = draw_message_ids(1)
    async with sender.relay() as relay:
        async with business.transaction():
            await store_messages(
                business,
                [Message(message_id, "clearing", b"x")],
                check_at=await business.fetchval("SELECT now() + interval '1 hour'"),
            )
        await sender.let_time_pass()
        assert await relay.sweep() == 0  # prepared: never sent
        await sender.confirm(clearing, message_id)
        await sender.until_counted(relay, unknown=1)
        (row,) = await sender.pending()
        assert (row["status"], row["is_decided"]) == (Status.PREPARED, False)
    assert await sender.sent(clearing) == []


async def test_confirms_that_came_while_no_relay_ran_are_taken_by_the_next(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    """It blames no consumer for the silence, however long no relay has listened."""
    clearing = await sender.set_up()
    async with sender.relay() as relay:
        ids = await sender.store(3)
        await sender.until_status(ids[-1], Status.CONFIRMED)
        await relay.settle()
    await sender.admin.execute("UPDATE outbox_pending SET sent_at = now() - interval '6 minutes'")
    await sender.confirm(clearing, *ids)
    async with sender.relay():
        await sender.until_status(ids[-1], Status.CONSUMED)
    assert len(await sender.done()) == 3
    assert CONSUMER not in caplog.text


async def test_relay_goes_on_after_a_damaged_head_that_names_an_offset_far_away(
    sender: Sender, kafka_server: KafkaServer
) -> None:
    """Also where the log begins with it, after what the relay has committed."""
    clearing = await sender.set_up()
    async with sender.relay():
        ids = await sender.store(4)
        await sender.until_status(ids[-1], Status.CONFIRMED)
        await sender.confirm(clearing, ids[0])
        await sender.until_status(ids[0], Status.CONSUMED)
    for message_id in ids[1:3]:
        await sender.confirm(clearing, message_id)
    await sender.lose_records(clearing.confirm_topic, sender.name, 2)
    damage_head(kafka_server, clearing.confirm_topic, 2)
    async with sender.relay() as relay:

        async def is_passed_over() -> bool:
            return relay.stats().bad_confirms["unreadable"] > 0

        await sender.until(is_passed_over)
        await sender.confirm(clearing, ids[3])
        await sender.until_status(ids[3], Status.CONSUMED)
        assert relay.stats().bad_confirms == {"unreadable": 1}
    statuses = await sender.statuses()
    assert [statuses[each] for each in ids[1:3]] == [Status.CONFIRMED] * 2
