"""Setting destinations up in Python: as the command line does, and two at once."""

import asyncio
from typing import Any

import pytest

from chain_kernel.errors import SettingError
from outbox import (
    Destination,
    DestinationMissing,
    Status,
    add,
    change_destination,
    create_destination_topics,
    save_destinations,
)
from outbox.roles import OUTBOX_OPERATOR
from outbox.sender.maintenance import remove_destination
from tests.deadlines import deadline

from ..conftest import Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def test_two_changes_at_once_are_both_made(sender: Sender) -> None:
    first = await sender.connect(OUTBOX_OPERATOR)
    second = await sender.connect(OUTBOX_OPERATOR)
    await asyncio.gather(
        change_destination(first, "d", topic="t", tries_max=7),
        change_destination(second, "d", topic="t", consumers=("a",)),
    )
    await asyncio.gather(
        change_destination(first, "d", resend_seconds=7.0),
        change_destination(second, "d", payload_bytes_max=7),
    )
    assert await change_destination(first, "d") == Destination(
        name="d", topic="t", consumers=("a",), tries_max=7, resend_seconds=7.0, payload_bytes_max=7
    )


async def test_destination_is_changed_and_removed_alone(sender: Sender) -> None:
    operator, business = await sender.connect(OUTBOX_OPERATOR), await sender.connect()
    await change_destination(operator, "a", topic="t", tries_max=7)
    await change_destination(operator, "b", topic="u")
    async with business.transaction():
        await add(business, "a", b"1")
    assert (await change_destination(operator, "b", tries_max=5)).topic == "u"
    await remove_destination(operator, "b")
    assert (await change_destination(operator, "a")).tries_max == 7


async def test_destination_of_a_message_that_is_being_added_is_not_removed(sender: Sender) -> None:
    operator, business = await sender.connect(OUTBOX_OPERATOR), await sender.connect()
    await change_destination(operator, "d", topic="t")
    async with business.transaction():
        await add(business, "d", b"1")  # not to be seen by others yet
        removing = asyncio.create_task(remove_destination(operator, "d"))
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $1"
        async with deadline():
            while not await sender.admin.fetchval(  # noqa: ASYNC110
                waits, operator.get_server_pid()
            ):
                await asyncio.sleep(0.02)
    with pytest.raises(SettingError, match=r"without unfinished deliveries \(there are 1:"):
        await removing
    await sender.admin.execute("DELETE FROM outbox_pending")
    await remove_destination(operator, "d")
    with pytest.raises(DestinationMissing):
        await remove_destination(operator, "d")


NO_CONFIRM: dict[str, Any] = {"confirm": "none"}
ONE: dict[str, Any] = {"consumers": ("a",)}
TWO: dict[str, Any] = {"consumers": ("a", "b")}


@pytest.mark.parametrize(
    ("before", "after"),
    [(NO_CONFIRM, ONE), (NO_CONFIRM, TWO), (ONE, NO_CONFIRM), (TWO, NO_CONFIRM)],
)
async def test_relay_that_knows_the_old_confirm_goes_by_what_is_stored(
    sender: Sender, before: dict[str, Any], after: dict[str, Any]
) -> None:
    known = await sender.set_up(**before)
    async with sender.relay() as relay:
        await relay.keep()
        await sender.set_up(**after)
        relay._send_queues.destinations = {known.name: known}  # until it reads them again
        await sender.store(3)
        await sender.until_counted(relay, sent=3)
        await relay.settle()
    pending = {(row["consumer"], row["status"], row["topic"]) for row in await sender.pending()}
    awaited = after.get("consumers", ())
    assert pending == {(each, Status.CONFIRMED, known.topic) for each in awaited}
    assert len(await sender.done()) == (0 if awaited else 3)


async def test_destination_is_saved_with_its_topics(sender: Sender) -> None:
    topic = f"saved.{sender.name}"
    wanted = Destination(name="d", topic=topic, consumers=("a",))
    operator = await sender.connect(OUTBOX_OPERATOR)
    await save_destinations(operator, [wanted], create_topics=sender.kafka, partitions=2)
    assert await sender.records(topic) == []  # raises for a topic that is not there
    assert await create_destination_topics(sender.kafka, [wanted]) == []


@pytest.mark.parametrize(
    "changes", [{}, {"topic": "t", "nothing": 1}, {"topic": "t", "tries_max": 0}, {"topic": ""}]
)
async def test_change_that_makes_no_sense_is_refused(
    sender: Sender, changes: dict[str, Any]
) -> None:
    operator = await sender.connect(OUTBOX_OPERATOR)
    with pytest.raises(SettingError):
        await change_destination(operator, "d", **changes)
    assert await sender.admin.fetchval("SELECT count(*) FROM outbox_destination") == 0
