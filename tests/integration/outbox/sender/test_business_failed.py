"""What a business would have sent that failed, kept for people to look at where it asks."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from outbox import DestinationMissing, Message, MessageError, OutboxFull, draw_message_ids
from outbox.sender.business import FAILED_MESSAGES_MAX

from ..hand_clock import HandClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox import Relay

    from ..conftest import Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def failed(sender: Sender) -> list[dict[str, Any]]:
    rows = await sender.admin.fetch("SELECT * FROM outbox_failed ORDER BY failed_id")
    return [dict(row) for row in rows]


async def trade_twice(relay: Relay, business: asyncpg.Connection[Any], **asked: bool) -> None:
    async with relay.transaction(business, **asked) as transaction:
        await transaction.add("clearing", b"trade", key="k", headers={"kind": "x"})
        await business.execute("INSERT INTO trade VALUES (1), (1)")


async def fail(
    relay: Relay,
    business: asyncpg.Connection[Any],
    messages: Sequence[Message],
    *,
    error: type[BaseException] | None = None,
    statement: str = "",
    values: tuple[object, ...] = (),
) -> None:
    """Add messages one by one, run a statement, raise `error`; kept, since it is asked for."""
    async with relay.transaction(business, keep_failed=True) as transaction:
        for message in messages:
            await transaction.add_many([message])
        if statement:
            await business.execute(statement, *values)
        if error is not None:
            raise error


async def test_business_that_rolls_back_keeps_its_error_and_what_it_would_have_sent(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    business = await sender.connect()
    async with sender.relay() as relay:
        with pytest.raises(asyncpg.UniqueViolationError):
            await trade_twice(relay, business, keep_failed=True)
        await relay.settle()
        (row,) = await failed(sender)
        assert (row["outcome"], row["destination"], row["key"]) == ("rolled back", "clearing", "k")
        assert (row["payload"], row["headers"]) == (b"trade", '{"kind":"x"}')
        assert row["error"].startswith("UniqueViolationError: duplicate key")
        assert relay.stats().failed_kept == 1
        # Nobody else has asked for it.
        with pytest.raises(asyncpg.UniqueViolationError):
            await trade_twice(relay, business)
        # What commits has not failed.
        async with relay.transaction(business, keep_failed=True) as transaction:
            sent = await transaction.add("clearing", b"this one")
        await relay.settle()
    assert await failed(sender) == [row]
    assert await sender.sent(clearing) == [sent]


async def test_message_that_was_refused_is_kept_with_those_before_it(sender: Sender) -> None:
    await sender.set_up()
    business = await sender.connect()
    bad: list[tuple[Any, type[Exception]]] = [
        (("clearing", "text, not bytes"), MessageError),
        (("nowhere", b"x"), DestinationMissing),
        (("clearing", b"x", "key with \0"), MessageError),
        (("clearing", b"x", None, {"a": object()}), MessageError),
        (("clearing", b"x" * 600_000), MessageError),
    ]
    good_id, own_id = draw_message_ids(2)
    good = Message(good_id, "clearing", b"good")
    async with sender.relay() as relay:
        for given, refusal in bad:
            with pytest.raises(refusal):
                await fail(relay, business, [good, Message(own_id, *given)])
        with pytest.raises(asyncio.CancelledError):
            await fail(relay, business, [good], error=asyncio.CancelledError)
        await relay.settle()
    rows = await failed(sender)
    assert [row["payload"] for row in rows[::2]] == [b"good"] * (len(bad) + 1)
    assert [row["message_id"] for row in rows[1::2]] == [own_id] * len(bad)
    assert b"text, not bytes" in rows[1]["payload"]
    assert rows[5]["key"] == "key with \\0"
    assert "object" in rows[7]["headers"]
    assert len(rows[9]["payload"]) == 512 * 1024
    assert {row["outcome"] for row in rows} == {"rolled back"}
    assert await sender.pending() == []


async def test_business_whose_commit_may_have_happened_is_said_to_be_unknown(
    sender: Sender,
) -> None:
    """The server ends the session in mid commit, as at a failover."""
    await sender.set_up()
    await sender.admin.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON trade DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION die()"
    )
    business = await sender.connect()
    async with sender.relay() as relay:
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await fail(relay, business, [trade()], statement="INSERT INTO trade VALUES (1)")
        await relay.settle()
    (row,) = await failed(sender)
    assert (row["outcome"], row["payload"]) == ("unknown", b"trade")


async def test_commit_that_a_constraint_refuses_is_known_to_be_rolled_back(sender: Sender) -> None:
    await sender.set_up()
    await sender.admin.execute(
        "ALTER TABLE trade ADD UNIQUE (message_id) DEFERRABLE INITIALLY DEFERRED"
    )
    business = await sender.connect()
    async with sender.relay() as relay:
        same = trade()
        twice = "INSERT INTO trade VALUES (1, $1), (2, $1)"
        with pytest.raises(asyncpg.UniqueViolationError):
            await fail(relay, business, [same], statement=twice, values=(same.message_id,))
        await relay.settle()
    (row,) = await failed(sender)
    assert (row["outcome"], row["message_id"]) == ("rolled back", same.message_id)


@pytest.mark.nightly
async def test_what_is_kept_is_bounded_and_goes_with_its_time(sender: Sender) -> None:
    await sender.set_up()
    business = await sender.connect()
    clock = HandClock()
    async with sender.relay(clock=clock, upkeep_seconds=3600.0) as relay:
        for _ in range(11):
            many = [trade() for _ in range(FAILED_MESSAGES_MAX + 1)]
            with pytest.raises(ZeroDivisionError):
                await fail(relay, business, many, error=ZeroDivisionError)
            await relay.settle()
        assert (relay.stats().failed_kept, relay.stats().failed_dropped) == (1_100, 11)
        assert len(await failed(sender)) == 1_000
        clock.now_ns = time.time_ns() + round(73 * 3_600e9)
        await relay.keep()
    assert await failed(sender) == []


async def test_business_that_the_outbox_had_no_room_for_is_kept(sender: Sender) -> None:
    await sender.set_up()
    business = await sender.connect()
    async with sender.relay(outbox_bytes_max=1) as relay:
        await relay.keep()
        with pytest.raises(OutboxFull):
            await fail(relay, business, [trade()])
        await relay.settle()
    (row,) = await failed(sender)
    assert (row["payload"], row["outcome"]) == (b"trade", "rolled back")


def trade() -> Message:
    return Message(draw_message_ids(1)[0], "clearing", b"trade")
