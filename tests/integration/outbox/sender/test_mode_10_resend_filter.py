"""Mode 10: what is merely queued at its consumer is not sent again, what is lost is."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from chain_kernel.errors import RetryError
from outbox import Status, draw_message_ids
from tests.lanes import at_night

from ..conftest import CONSUMER, Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@pytest.mark.timeout(300)  # so many messages, on a machine that may do much else
@pytest.mark.parametrize("backlog", at_night(10_000, 100_000))
async def test_backlog_of_unread_messages_causes_no_resend_and_one_lost_in_it_is_resent(
    sender: Sender, backlog: int
) -> None:
    # Nothing falls due but by `let_time_pass`, however long the backlog takes to be sent.
    clearing = await sender.set_up(resend_filter=True, resend_seconds=600.0)
    ids = draw_message_ids(backlog)
    # A try is not what this is about: a machine that does much else may be slow to acknowledge.
    async with sender.relay(sweep_rows_max=10_000, send_seconds=120.0) as relay:
        for first in range(0, backlog, 10_000):
            await sender.store(ids=ids[first : first + 10_000])
        await sender.until_status(ids[-1], Status.CONFIRMED)
        await relay.settle()
        assert relay.stats().sent == backlog

        # The consumer has not come to any of them, has not even said so: all are due, none is sent.
        await sender.let_time_pass()
        assert await relay.sweep() == backlog
        assert (relay.stats().queued, relay.stats().resent) == (backlog, 0)
        assert relay.stats().abnormal == 0

        # It has come to the middle, and confirmed all that it has read but one.
        middle = backlog // 2
        row = await sender.admin.fetchrow(
            'SELECT message_id, "offset" FROM outbox_pending WHERE "offset" = $1', middle - 100
        )
        lost = row["message_id"]
        read = await sender.admin.fetch(
            'SELECT message_id FROM outbox_pending WHERE "offset" < $1 AND message_id <> $2',
            middle, lost,
        )  # fmt: skip
        found = [each["message_id"] for each in read]
        for first in range(0, len(found), 10_000):
            await sender.confirm(clearing, *found[first : first + 10_000])
        await sender.confirm(clearing, progress=(middle,))
        await sender.until_true(
            'SELECT "offset" = $1 FROM outbox_progress WHERE "partition" = 0', middle
        )
        assert relay.stats().consumed == middle - 1
        await sender.let_time_pass()
        assert await relay.sweep() == backlog - middle + 1
        await relay.settle()
        assert relay.stats().resent == 1
        assert relay.stats().sent == backlog + 1
    resent = [row for row in await sender.pending() if row["send_count"] == 2]
    assert [row["message_id"] for row in resent] == [lost]
    assert resent[0]["offset"] == backlog  # where the topic ended


async def test_message_found_in_the_consumers_own_log_is_done_and_not_sent(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    applied, lost = draw_message_ids(2)
    asked: list[list[UUID]] = []

    class Log:
        async def applied(self, message_ids: Sequence[UUID]) -> set[UUID]:
            asked.append(list(message_ids))
            if len(asked) == 1:  # what it asks was cancelled, and not the relay
                raise asyncio.CancelledError
            return {applied}

    async with sender.relay(consumer_logs={CONSUMER: Log()}) as relay:
        await sender.store(ids=[applied, lost])
        await sender.until_status(lost, Status.CONFIRMED)
        await relay.settle()
        assert asked == []  # what was never sent is in no log
        await sender.let_time_pass()
        with pytest.raises(RetryError, match="it raised CancelledError, though its task"):
            await relay.sweep()
        await relay.sweep()
        await relay.settle()
        assert asked == [[applied, lost]] * 2
        assert (relay.stats().found_applied, relay.stats().resent) == (1, 1)
    assert await sender.statuses() == {applied: Status.CONSUMED, lost: Status.CONFIRMED}
    assert sorted(await sender.sent(clearing)) == [applied, lost, lost]


async def test_unknown_offset_and_an_age_beyond_the_cap_are_due_by_time_alone(
    sender: Sender,
) -> None:
    clearing = await sender.set_up(resend_filter=True, queue_seconds_max=3_600.0)
    queued, unacknowledged, old = draw_message_ids(3)
    async with sender.relay() as relay:
        await sender.store(ids=[queued, unacknowledged, old])
        await sender.until_status(old, Status.CONFIRMED)
        await relay.settle()
        await sender.admin.execute(
            'UPDATE outbox_pending SET status = 0, "offset" = NULL WHERE message_id = $1',
            unacknowledged,
        )
        await sender.admin.execute(
            "UPDATE outbox_pending SET sent_at = sent_at - interval '1 hour' WHERE message_id = $1",
            old,
        )
        await sender.let_time_pass()
        await relay.sweep()
        await relay.settle()
        assert (relay.stats().queued, relay.stats().resent) == (1, 2)
    sent = await sender.sent(clearing)
    assert sorted(sent) == sorted([queued, unacknowledged, old, unacknowledged, old])


async def test_progress_of_strangers_is_not_kept(sender: Sender) -> None:
    clearing = await sender.set_up(resend_filter=True)
    async with sender.relay():
        await sender.confirm(clearing, progress=(5,), consumer="somebody-else")
        await sender.confirm(clearing, progress=(7,))
        await sender.until_true("SELECT count(*) FROM outbox_progress")
    rows = await sender.admin.fetch(
        'SELECT consumer, topic, "partition", "offset" FROM outbox_progress'
    )
    assert [tuple(row) for row in rows] == [(CONSUMER, clearing.topic, 0, 7)]
