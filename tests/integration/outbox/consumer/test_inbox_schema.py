"""The consumer's tables: what their roles may do, their partitions, and what is dropped when."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from outbox.acts import DeadLetterFilter, DeadLetters
from outbox.consumer.delivery import Delivery
from outbox.consumer.inbox import REFUSED, Inbox
from outbox.message import MessageIds, draw_message_ids
from tests.opened import connected

DAY = timedelta(days=1)
NOW = datetime.now(UTC).replace(microsecond=0)
TRADES = ("trades", 0)


def id_at(time: datetime) -> UUID:
    """Return a message id of this time."""
    return MessageIds(wall_ns=lambda: round(time.timestamp() * 1e9)).draw(1)[0]


def ns(time: datetime) -> int:
    return round(time.timestamp() * 1e9)


def delivery(message_id: UUID, key: bytes | None = None) -> Delivery:
    return Delivery(
        message_id=message_id, destination="clearing", payload=b"", key_bytes=key, headers={},
        topic="trades", partition=0, offset=0, received_at=NOW,
    )  # fmt: skip


@pytest.fixture
async def inbox(admin: asyncpg.Connection) -> Inbox:
    made = await Inbox.open(admin, "clearing", 10.0)
    await made.know_topics(admin, ["trades"])
    return made


@pytest.fixture
async def partitions(admin: asyncpg.Connection) -> Any:
    async def names() -> list[str]:
        rows = await admin.fetch(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = 'inbox'::regclass ORDER BY 1"
        )
        return [row["relname"] for row in rows]

    return names


@pytest.fixture
async def consumer_role(admin: asyncpg.Connection) -> AsyncIterator[asyncpg.Connection]:
    await admin.execute("SET ROLE outbox_consumer")
    yield admin
    await admin.execute("RESET ROLE")


async def test_consumer_role_may_do_all_that_a_consumer_does(
    consumer_role: asyncpg.Connection,
) -> None:
    inbox = await Inbox.open(consumer_role, "clearing", 10.0)
    await inbox.know_topics(consumer_role, ["trades"])
    await inbox.extend(consumer_role, ns(NOW))
    one, two = delivery(id_at(NOW), b"K"), delivery(id_at(NOW))
    async with consumer_role.transaction():
        assert await inbox.claim(consumer_role, [one]) == {one.message_id}
        await inbox.judge(consumer_role, [one])
        assert await inbox.admit(consumer_role, [two]) == {two.message_id}
        await inbox.park(consumer_role, two, failures=1, due_ns=ns(NOW), error="no")
        assert await inbox.take_due(consumer_role, ns(NOW), ns(NOW + DAY)) is not None
        await inbox.park_again(consumer_role, two, failures=2, due_ns=ns(NOW), error="no")
        assert await inbox.record(consumer_role, two)
        await inbox.bury(consumer_role, two, failures=2, reason="tries used up", error="no")
        await inbox.unpark(consumer_role, two, ns(NOW))
        await inbox.unpark(consumer_role, one, ns(NOW))
    await inbox.know_partitions(consumer_role, [TRADES])
    assert await inbox.highest_floors(consumer_role) == {}
    await inbox.keep_floors(consumer_role, {TRADES: one.message_id})
    await inbox.retire(consumer_role, ns(NOW - 3 * DAY))


async def test_operator_acts_on_dead_letters_with_no_other_rights(
    admin: asyncpg.Connection,
) -> None:
    """All statements of the acts run as the role; what they do is tested elsewhere."""
    inbox = await Inbox.open(admin, "clearing", 10.0)
    for message_id in draw_message_ids(2):
        given = delivery(message_id, b"K")
        await inbox.bury(admin, given, failures=1, reason=REFUSED, error="no")
    await admin.execute("SET ROLE outbox_operator")
    letters = DeadLetters(admin)
    first, second = await letters.list(DeadLetterFilter(consumer="clearing"))
    for act, letter in (("retry", first), ("abandon", second)):
        chosen = DeadLetterFilter(message_ids=(letter.message_id,))
        assert await letters.act(act, chosen, actor="anna", reason="x") == [letter]
    assert len(await letters.show(second.message_id)) == 1
    await admin.execute("RESET ROLE")
    logins = await admin.fetch("SELECT login FROM inbox_act")
    assert {row["login"] for row in logins} == {await admin.fetchval("SELECT session_user")}


async def test_extend_makes_the_partitions_of_three_days_once(
    admin: asyncpg.Connection, inbox: Inbox, partitions: Any
) -> None:
    await inbox.extend(admin, ns(NOW))
    await inbox.extend(admin, ns(NOW))
    expected = [f"inbox_{NOW + step * DAY:%Y%m%d}" for step in range(3)]
    assert await partitions() == [*expected, "inbox_default"]
    ids = [id_at(NOW), id_at(NOW + DAY), id_at(NOW - 30 * DAY)]
    async with admin.transaction():
        assert await inbox.claim(admin, [delivery(one) for one in ids]) == set(ids)
    rows = await admin.fetch("SELECT tableoid::regclass::text AS name FROM inbox ORDER BY 1")
    assert [row["name"] for row in rows] == [*expected[:2], "inbox_default"]


async def test_extend_moves_rows_of_its_days_out_of_the_default_partition(
    admin: asyncpg.Connection, inbox: Inbox, partitions: Any
) -> None:
    """A sender's clock, or a stranger, was ahead: the days get their partitions all the same."""
    ahead = [delivery(id_at(NOW + step * DAY)) for step in (0, 1, 5)]
    async with admin.transaction():
        await inbox.claim(admin, ahead)
    await inbox.extend(admin, ns(NOW))
    days = [f"inbox_{NOW + step * DAY:%Y%m%d}" for step in range(3)]
    assert await partitions() == [*days, "inbox_default"]
    rows = await admin.fetch("SELECT tableoid::regclass::text FROM inbox ORDER BY message_id")
    assert [row[0] for row in rows] == [*days[:2], "inbox_default"]
    async with admin.transaction():
        assert await inbox.claim(admin, ahead) == set()


async def test_retire_drops_old_days_and_what_is_older_is_not_worked_on(
    admin: asyncpg.Connection, inbox: Inbox, partitions: Any
) -> None:
    old_day = NOW - 10 * DAY
    await inbox.extend(admin, ns(old_day))
    await inbox.extend(admin, ns(NOW))
    old, strange, new = id_at(old_day), id_at(NOW - 400 * DAY), id_at(NOW)
    async with admin.transaction():
        await inbox.claim(admin, [delivery(one) for one in (old, strange, new)])
    await inbox.keep_floors(admin, {TRADES: new})
    await inbox.retire(admin, ns(NOW - 3 * DAY))
    rows = await admin.fetch("SELECT message_id FROM inbox")
    assert [row["message_id"] for row in rows] == [new]
    assert f"inbox_{old_day:%Y%m%d}" not in await partitions()
    async with admin.transaction():
        assert await inbox.claim(admin, [delivery(old), delivery(new)]) == set()
        judged = await inbox.judge(admin, [delivery(old), delivery(new)])
    assert judged[old].is_below_horizon
    assert not judged[old].is_applied
    assert judged[new].is_applied


async def test_retire_keeps_what_a_sender_may_send_again(
    admin: asyncpg.Connection, inbox: Inbox
) -> None:
    """The inbox outlives the oldest unfinished message, whose id travels with the records."""
    old_day = NOW - 10 * DAY
    await inbox.extend(admin, ns(old_day))
    unfinished, applied = id_at(old_day), id_at(old_day + timedelta(seconds=1))
    async with admin.transaction():
        await inbox.claim(admin, [delivery(applied)])
    await inbox.keep_floors(admin, {TRADES: unfinished})
    await inbox.retire(admin, ns(NOW - 3 * DAY))
    async with admin.transaction():
        judged = await inbox.judge(admin, [delivery(applied)])
        assert judged[applied].is_applied
        # The one that the sender has not finished is new, and is worked on.
        assert await inbox.claim(admin, [delivery(unfinished)]) == {unfinished}


async def test_retire_keeps_what_no_process_has_read_yet(
    admin: asyncpg.Connection, inbox: Inbox
) -> None:
    """Another process is at the head of its partition, and knows nothing of this one's backlog."""
    old_day = NOW - 6 * DAY
    await inbox.extend(admin, ns(old_day))
    applied, unread = id_at(old_day), id_at(old_day + timedelta(seconds=1))
    async with admin.transaction():
        await inbox.claim(admin, [delivery(applied)])
    ahead = {("trades", 1): id_at(NOW)}
    await inbox.know_partitions(admin, [TRADES, *ahead])
    await inbox.keep_floors(admin, ahead)
    assert await inbox.retire(admin, ns(NOW - 3 * DAY)) is None  # nothing is known of the other one
    await inbox.keep_floors(admin, {TRADES: applied})
    await inbox.keep_floors(admin, ahead)
    await inbox.retire(admin, ns(NOW - 3 * DAY))
    async with admin.transaction():
        assert await inbox.claim(admin, [delivery(unread)]) == {unread}


async def test_retire_leaves_out_a_topic_that_none_has_read_for_a_week(
    admin: asyncpg.Connection, inbox: Inbox
) -> None:
    await inbox.keep_floors(admin, {TRADES: id_at(NOW)})
    await inbox.know_topics(admin, ["fees"])
    assert await inbox.retire(admin, ns(NOW - 3 * DAY)) is None
    old = "UPDATE inbox_topic SET subscribed_at = now() - interval '8 days' WHERE topic = 'fees'"
    await admin.execute(old)
    assert await inbox.retire(admin, ns(NOW - 3 * DAY)) is not None
    await inbox.know_topics(admin, ["fees"])
    assert await inbox.retire(admin, ns(NOW - 3 * DAY)) is None


async def test_move_back_forgets_what_was_known_to_come(
    admin: asyncpg.Connection, inbox: Inbox
) -> None:
    await inbox.keep_floors(admin, {TRADES: id_at(NOW)})
    await inbox.begin(admin, {"trades": [0]})
    assert await inbox.retire(admin, ns(NOW - 3 * DAY)) is not None
    await inbox.begin(admin, {"trades": [0]}, is_moved=True)
    assert await inbox.retire(admin, ns(NOW - 3 * DAY)) is None


async def test_retire_keeps_all_while_one_sender_does_not_report(
    admin: asyncpg.Connection, inbox: Inbox
) -> None:
    await inbox.know_topics(admin, ["trades", "fees"])
    async with admin.transaction():
        await inbox.claim(admin, [delivery(id_at(NOW - 100 * DAY))])
    await inbox.keep_floors(admin, {TRADES: id_at(NOW)})
    assert await inbox.retire(admin, ns(NOW)) is None
    assert await admin.fetchval("SELECT count(*) FROM inbox") == 1


async def test_retire_keeps_what_another_consumer_of_the_database_still_needs(
    admin: asyncpg.Connection, inbox: Inbox
) -> None:
    other = await Inbox.open(admin, "ledger", 10.0)
    await other.know_topics(admin, ["trades"])
    old = id_at(NOW - 100 * DAY)
    async with admin.transaction():
        await inbox.claim(admin, [delivery(old)])
        await other.claim(admin, [delivery(old)])
    await inbox.keep_floors(admin, {TRADES: id_at(NOW)})
    await inbox.retire(admin, ns(NOW))
    assert await admin.fetchval("SELECT count(*) FROM inbox") == 2


async def test_retire_waits_for_no_claim_while_it_drops_nothing(
    admin: asyncpg.Connection, inbox: Inbox, database: str
) -> None:
    """Below the horizon there is nearly always a part of its day."""
    await inbox.extend(admin, ns(NOW))
    day = NOW.replace(hour=0, minute=0, second=0)
    async with admin.transaction():
        await inbox.claim(admin, [delivery(id_at(day))])
    await inbox.keep_floors(admin, {TRADES: id_at(day + timedelta(hours=23))})
    async with connected(database) as other, other.transaction():
        await inbox.claim(other, [delivery(id_at(day + timedelta(hours=23)))])
        assert await inbox.retire(admin, ns(day + timedelta(hours=1))) is not None
    assert await admin.fetchval("SELECT count(*) FROM inbox") == 2


async def test_retire_of_many_strays_is_done_in_pieces(
    admin: asyncpg.Connection, inbox: Inbox
) -> None:
    """Claims wait meanwhile, and one piece would not end within the deadline of a statement."""
    await admin.execute(
        "INSERT INTO inbox SELECT inbox_id_at($1::timestamptz + n * interval '1 ms'), consumer_id,"
        " 'trades', 0, n, now() FROM inbox_consumer, generate_series(0, 100000) AS n",
        NOW - 100 * DAY,
    )
    await inbox.keep_floors(admin, {TRADES: id_at(NOW)})
    for left in (1, 0):
        await inbox.retire(admin, ns(NOW - 3 * DAY))
        assert await admin.fetchval("SELECT count(*) FROM inbox") == left


async def test_two_consumers_of_one_database_both_forget(
    admin: asyncpg.Connection, inbox: Inbox
) -> None:
    other = await Inbox.open(admin, "ledger", 10.0)
    await other.know_topics(admin, ["trades"])
    old = id_at(NOW - 100 * DAY)
    for each in (inbox, other):
        async with admin.transaction():
            await each.claim(admin, [delivery(old)])
        await each.keep_floors(admin, {TRADES: id_at(NOW)})
    for each in (inbox, other, inbox):
        await each.retire(admin, ns(NOW - 3 * DAY))
    assert await admin.fetchval("SELECT count(*) FROM inbox") == 0


async def test_two_consumers_of_one_database_apply_a_message_once_each(
    admin: asyncpg.Connection, inbox: Inbox
) -> None:
    other = await Inbox.open(admin, "ledger", 10.0)
    one = id_at(NOW)
    async with admin.transaction():
        assert await inbox.claim(admin, [delivery(one)]) == {one}
        assert await other.claim(admin, [delivery(one)]) == {one}
        assert await other.claim(admin, [delivery(one)]) == set()
