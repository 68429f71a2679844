"""Mode 13: finished messages are dropped by partition, unfinished ones never."""

import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

import outbox
from chain_kernel.errors import SettingError
from outbox import KeepConfig, OutboxFull, Status, keep_outbox
from outbox.message import MessageIds
from outbox.roles import OUTBOX_OPERATOR

from ..conftest import Sender
from ..hand_clock import HandClock

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

NOW_NS = time.time_ns()


def at_hours(hours: float) -> int:
    """Return the time so many hours from now."""
    return NOW_NS + round(hours * 3_600e9)


async def store(sender: Sender, hours: float = 0, count: int = 1) -> list[UUID]:
    """Store messages as if so many hours from now."""
    ids = MessageIds(wall_ns=lambda: at_hours(hours)).draw(count)
    return await sender.store(ids=ids, payload=bytes(2_000))


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
        await sender.until_counted(relay, consumed=37)
        clock.now_ns = at_hours(71)
        await relay.keep()
        assert await kept(sender) == set(ids)
        clock.now_ns = at_hours(80)
        await relay.keep()
        assert await kept(sender) == {unfinished, half}
        assert relay.stats().survivors == 2
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
        await sender.until_true("SELECT count(*) = 0 FROM outbox_pending")
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


async def test_ids_of_coming_days_keep_no_partition_from_being_made(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    """A clock is ahead, or a business draws such ids: its messages are moved, and sent."""
    clearing = await sender.set_up()
    ahead = [(await store(sender, hours=hours))[0] for hours in (24, 30, 36)]
    flood = 24 * 30
    await sender.admin.execute(
        "INSERT INTO outbox_message (message_id, destination, payload) SELECT overlay("
        "outbox_new_id()::text PLACING left(outbox_id_at(now() + $1 * interval '1 hour')::text, 13)"
        " FROM 1 FOR 13)::uuid, 'clearing', '' FROM generate_series(0, 100000)", flood,
    )  # fmt: skip
    clock = HandClock(at_hours(20))
    async with sender.relay(clock=clock, upkeep_seconds=3600.0) as relay:
        await sender.until_status(ahead[-1], Status.CONFIRMED)
        for hours in (20, 26, 36):
            clock.now_ns = at_hours(hours)
            await relay.keep()
        strays = "SELECT count(*) FROM outbox_message_default WHERE message_id < outbox_id_at($1)"
        soon = datetime.fromtimestamp(at_hours(48) / 1e9, UTC)
        assert await sender.admin.fetchval(strays, soon) == 0
        assert set(await sender.sent(clearing)) == set(ahead) <= await kept(sender)
        assert "could not be made" not in caplog.text
        # More than one call can move: that time goes without, and it is said.
        clock.now_ns = at_hours(flood)
        await relay.keep()
        assert "1 partition could not be made" in caplog.text


async def test_old_strays_are_removed_a_bounded_number_per_round(sender: Sender) -> None:
    await sender.admin.execute(
        "INSERT INTO outbox_done (message_id, consumer, destination, status, send_count, "
        "finished_at) SELECT overlay(outbox_new_id()::text PLACING '00000000-0001' FROM 1 FOR 13)"
        "::uuid, 'c', 'd', 2, 1, now() - interval '100 hours' FROM generate_series(0, 10000)"
    )
    await keep_by_hand(sender)
    assert len(await sender.done()) == 1
    await keep_by_hand(sender)
    assert await sender.done() == []


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
        assert (relay.stats().survivors, await sender.done()) == (0, [])
        tables_now = await sender.admin.fetchval("SELECT count(*) FROM outbox_partition")
        await relay.keep()
        assert await sender.admin.fetchval("SELECT count(*) FROM outbox_partition") == tables_now


async def test_partition_that_is_being_read_waits_for_a_later_round(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt to drop it makes all who add messages wait: so it is not tried again at once."""
    await keep_by_hand(sender)
    clock = HandClock(at_hours(100))
    reading = sender.admin.transaction()
    await reading.start()
    await sender.admin.execute("LOCK TABLE outbox_message IN ACCESS SHARE MODE")  # as pg_dump does

    async def has_failed() -> bool:
        return "lock timeout" in caplog.text

    async with sender.relay(clock=clock, upkeep_seconds=3600.0) as relay:
        await sender.until(has_failed)
        assert "the outbox's retention has to wait" in caplog.text
        assert "retention: " not in caplog.text  # its part goes on
        await reading.rollback()
        assert relay.stats().partitions_dropped == 0
        await relay.keep()
        assert relay.stats().partitions_dropped > 0


async def test_second_watermark_refuses_to_add_until_history_was_dropped(sender: Sender) -> None:
    clearing = await sender.set_up()
    business = await sender.connect()
    clock = HandClock(NOW_NS)
    async with sender.relay(clock=clock, upkeep_seconds=3600.0) as relay:
        ids = await store(sender, count=500)
        await sender.until_status(ids[-1], Status.CONFIRMED)
        await relay.settle()
        await sender.confirm(clearing, *ids)
        await sender.until_status(ids[-1], Status.CONSUMED)

    before = await keep_by_hand(sender)
    assert not before.is_full
    async with sender.relay(clock=clock, upkeep_seconds=3600.0,
                            outbox_bytes_max=before.bytes - 1) as relay:  # fmt: skip
        await relay.keep()
        assert relay.stats().found_full >= 1
        with pytest.raises(OutboxFull, match=rf"takes {before.bytes} bytes .*chainctl outbox keep"):
            async with relay.transaction(business) as transaction:
                await transaction.add("clearing", b"trade")
        with pytest.raises(asyncpg.InsufficientResourcesError, match="until history is dropped"):
            await business.execute("SELECT outbox_add('clearing', 'trade')")
        # Others leave the bound alone, and refuse as well.
        async with business.transaction():
            with pytest.raises(OutboxFull):
                await outbox.add(business, "clearing", b"trade")
        # Whole partitions go once they have ended, and there is room again.
        clock.now_ns = at_hours(13)
        dropped = await keep_by_hand(sender, clock, history_bytes_max=1)
        assert (dropped.partitions_dropped >= 1, dropped.is_full) == (True, False)
        assert (dropped.bytes < before.bytes, dropped.bytes_max) == (True, before.bytes - 1)
        async with relay.transaction(business) as transaction:
            added = await transaction.add("clearing", b"trade")
    assert await kept(sender) == {added}


async def test_messages_that_are_stored_are_sent_while_none_may_be_added(sender: Sender) -> None:
    clearing = await sender.set_up()
    (stored,) = await store(sender)
    assert (await keep_by_hand(sender, outbox_bytes_max=1)).is_full
    async with sender.relay() as relay:
        await sender.until_status(stored, Status.CONFIRMED)
        await relay.settle()
        await sender.confirm(clearing, stored)
        await sender.until_status(stored, Status.CONSUMED)
    with pytest.raises(OutboxFull):
        await store(sender)
    # By hand: a bound of 0 is none.
    assert not (await keep_by_hand(sender, outbox_bytes_max=0)).is_full
    await store(sender)


async def test_watermarks_that_refuse_before_they_drop_are_refused(sender: Sender) -> None:
    for make in (sender.config, lambda **given: KeepConfig(database="postgresql://db/x", **given)):
        with pytest.raises(SettingError, match="outbox_bytes_max"):
            make(history_bytes_max=10, outbox_bytes_max=10)
        make(history_bytes_max=10, outbox_bytes_max=0)


async def keep_by_hand(
    sender: Sender, clock: HandClock | None = None, **settings: Any
) -> outbox.MaintenanceReport:
    config = KeepConfig(database=sender.dsns[OUTBOX_OPERATOR], **settings)
    return await keep_outbox(config, clock=clock or HandClock(NOW_NS))
