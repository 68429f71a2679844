"""Mode 13: finished messages are dropped by partition, unfinished ones never."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import outbox
from outbox import Message, Status
from outbox.message import MessageIds

from .hand_clock import HandClock

if TYPE_CHECKING:
    from uuid import UUID

    from .conftest import Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

NOW_NS = time.time_ns()


def at_hours(hours: float) -> int:
    """Return the time so many hours from now."""
    return NOW_NS + round(hours * 3_600e9)


async def store(sender: Sender, hours: float = 0, count: int = 1) -> list[UUID]:
    """Store messages as if so many hours from now."""
    business = await sender.connect()
    at_ns = at_hours(hours)
    ids = MessageIds(wall_ns=lambda: at_ns).draw(count)
    async with business.transaction():
        payload = bytes(2_000)
        await outbox.add_many(business, [Message(each, "clearing", payload) for each in ids])
    return ids


async def kept(sender: Sender) -> set[UUID]:
    return {row[0] for row in await sender.admin.fetch("SELECT message_id FROM outbox_message")}


async def tables(sender: Sender) -> int:
    return int(
        await sender.admin.fetchval(
            "SELECT count(*) FROM pg_inherits WHERE inhparent IN "
            "('outbox_message'::regclass, 'outbox_done'::regclass)"
        )
    )


async def test_finished_messages_are_dropped_after_their_time_and_unfinished_ones_survive(
    sender: Sender,
) -> None:
    clearing = await sender.set_up(consumers=("a", "b"))
    clock = HandClock(NOW_NS)
    async with sender.relay(clock=clock, upkeep_seconds=3600.0) as relay:
        ids = await store(sender, count=20)
        await sender.until_status(ids[-1], Status.CONFIRMED)
        await relay.settle()
        unfinished, half = ids[3], ids[7]
        finished = [each for each in ids if each not in (unfinished, half)]
        await sender.confirm(clearing, *finished, consumer="a")
        await sender.confirm(clearing, *finished, half, consumer="b")
        await sender.until_status(finished[-1], Status.CONSUMED)

        async def is_taken() -> bool:
            return relay.stats.consumed == 37

        await sender.until(is_taken)
        clock.now_ns = at_hours(71)
        await relay.keep()
        assert await kept(sender) == set(ids)
        clock.now_ns = at_hours(80)
        await relay.keep()
        assert await kept(sender) == {unfinished, half}
        assert relay.stats.survivors == 2
        assert [(row["message_id"], row["consumer"]) for row in await sender.done()] == [
            (half, "b")
        ]

        # They are as good as before: sent again, confirmed, and then gone in their turn.
        await sender.let_time_pass()
        await relay.sweep()
        await relay.settle()
        assert (await sender.sent(clearing)).count(unfinished) == 2
        await sender.confirm(clearing, unfinished, consumer="b")
        await sender.confirm(clearing, unfinished, half, consumer="a")

        async def is_done() -> bool:
            return await sender.pending() == []

        await sender.until(is_done)
        clock.now_ns = at_hours(160)
        await relay.keep()
        assert await kept(sender) == set()
        assert await sender.done() == []


async def test_partitions_are_made_ahead_and_new_messages_do_not_go_to_the_default(
    sender: Sender,
) -> None:
    await sender.set_up()
    clock = HandClock(NOW_NS)
    async with sender.relay(clock=clock, upkeep_seconds=3600.0) as relay:
        for hours in range(0, 60, 6):
            clock.now_ns = at_hours(hours)
            await relay.keep()
            await store(sender, hours=hours + 12)  # the second one ahead
        assert await sender.admin.fetchval("SELECT count(*) FROM outbox_message_default") == 0
        assert await sender.admin.fetchval("SELECT count(*) FROM outbox_message") == 10
        before = await tables(sender)
        await relay.keep()  # nothing left to make
        assert await tables(sender) == before


async def test_watermark_passed_drops_the_oldest_earlier_but_not_what_is_unfinished(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    clock = HandClock(NOW_NS)
    settings = {"clock": clock, "upkeep_seconds": 3600.0, "history_bytes_max": 1}
    async with sender.relay(**settings) as relay:
        old, unfinished, *rest = await store(sender, count=500)
        await sender.until_status(rest[-1], Status.CONFIRMED)
        await relay.settle()
        await sender.confirm(clearing, old, *rest)
        await sender.until_status(rest[-1], Status.CONSUMED)
        await relay.keep()
        # The partition still takes messages: it is left, whatever it takes on disk.
        assert await kept(sender) == {old, unfinished, *rest}

        clock.now_ns = at_hours(13)  # long before the retention of 72 hours
        await relay.keep()
        (new,) = await store(sender, hours=13)
        await relay.keep()
        assert await kept(sender) == {unfinished, new}
        assert (await sender.statuses())[unfinished] is Status.CONFIRMED


async def test_partition_with_too_many_unfinished_messages_stays_whole(sender: Sender) -> None:
    await sender.set_up()
    clock = HandClock(NOW_NS)
    async with sender.relay(clock=clock, upkeep_seconds=3600.0, survivors_max=2) as relay:
        ids = await store(sender, count=3)
        await sender.until_status(ids[-1], Status.CONFIRMED)
        clock.now_ns = at_hours(100)
        await relay.keep()
        assert await kept(sender) == set(ids)
        assert (relay.stats.survivors, await sender.done()) == (0, [])
        tables_now = await sender.admin.fetchval("SELECT count(*) FROM outbox_partition")
        await relay.keep()
        assert await sender.admin.fetchval("SELECT count(*) FROM outbox_partition") == tables_now
