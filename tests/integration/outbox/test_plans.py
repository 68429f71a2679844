"""The statements of the hot path go by the indexes, whatever the statistics of their tables say."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

import outbox
from chainctl.schema.parts import PARTS
from local_stack.postgres import SUPERUSER
from outbox import Message, draw_message_ids
from outbox.callback.callback_service import SQL as CALLBACK_SQL
from outbox.callback.checked_sender import SQL as CHECKED_SQL
from outbox.roles import OUTBOX_RELAY
from outbox.sender.check_back import SQL as PREPARED_SQL
from outbox.sender.store import SQL
from outbox.service.message_api import SQL as SERVICE_SQL
from outbox.session import PLAN_SETTINGS, OutboxSession
from outbox.statuses import SENDABLE, Change, sources

from .conftest import CONSUMER, Sender

pytestmark = pytest.mark.postgres

IDS = draw_message_ids(500)
TOKENS = [uuid4()] * 500
CONSUMERS = [CONSUMER] * 500
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 10_000
"""In the tables that were empty when they were looked at: enough that reading all of one shows."""

HOT: dict[str, Sequence[Any]] = {
    "due": (datetime(1970, 1, 1, tzinfo=UTC), 100, (0, 1), ["clearing"], [10], 200),
    "claim": (IDS, CONSUMERS, [1.0] * 500, TOKENS[0]),
    "wait": (IDS, CONSUMERS, [1.0] * 500),
    "give_up": (IDS, CONSUMERS, ["why"] * 500, (0, 1)),
    "messages": (IDS, IDS[0], IDS[-1]),
    "acknowledged": (IDS, TOKENS, ["t"] * 500, [0] * 500, [0] * 500, (0, 1)),
    "done_by_broker": (IDS, TOKENS, (0, 1)),
    "failed": (IDS, TOKENS, ["why"] * 500, (0, 1)),
    "released": (IDS, TOKENS, [None] * 500, (0, 1)),
    "applied": (IDS, CONSUMERS, sources(Change.APPLIED)),
    "known": (IDS, CONSUMERS),
    "oldest_unfinished": (3_600.0,),
}


PREPARED: dict[str, Sequence[Any]] = {
    "claim_checks": (NOW, TOKENS[0], NOW, 100, ["payments"], NOW),
    "ask_again": (IDS, [1] * 500, [NOW] * 500, ["why"] * 500, TOKENS[0]),
    "checks_used_up": (IDS, [1] * 500, TOKENS[0], (4,)),
    "committed": (IDS, (4,), None),
    "rolled_back": (IDS, (4,), None),
    "standing": (IDS, IDS[0], IDS[-1]),
}
CHECKED: dict[str, Sequence[Any]] = {
    "claim": (IDS, CONSUMER, TOKENS[0], sorted(map(int, SENDABLE)), 20),
    "sent": (IDS, TOKENS[0], (0, 1)),
    "give_up": (IDS, CONSUMER, sources(Change.TRIES_USED_UP), 20),
}
CALLBACK: dict[str, Sequence[Any]] = {
    "senders": (NOW, 0),
    "claim": (NOW, 0, TOKENS[0], NOW, 100, ["t"], "payments"),
    "asked": (IDS, CONSUMERS, [False] * 500, [1] * 500, [NOW] * 500, ["why"] * 500, TOKENS[0]),
    "returned": (IDS, CONSUMERS, TOKENS[0]),
    "refused": (IDS, CONSUMERS, TOKENS[0], NOW),
    "not_returned": (IDS, CONSUMERS, TOKENS[0], NOW, "why"),
    "trim": (IDS[0], 10_000, ["nowhere"]),
}
PAGE = SERVICE_SQL["page"]
OUTBOX = {
    **{name: (SQL[name], values) for name, values in HOT.items()},
    **{f"prepared {name}": (PREPARED_SQL[name], values) for name, values in PREPARED.items()},
    **{f"checked {name}": (CHECKED_SQL[name], values) for name, values in CHECKED.items()},
    "list page": (PAGE, ("payments", UUID(int=0), "", None, None, 100)),
}


def check_plan(lines: Sequence[Any], *, reads_all: bool = False) -> None:
    """Fail unless a plan looks each row up by an index: it never reads the whole of a table."""
    plan = "\n".join(line[0] for line in lines)
    assert not re.search("Seq Scan on (outbox|callback)_", plan), plan
    assert not re.search(r"(Hash|Merge) (Left )?Join", plan), plan
    # Each look at an index has a condition: none of them reads it whole, row after row.
    looks = re.findall(r"Index (?:Only )?Scan (?:using|on) .*(?:\n +(.*))?", plan)
    assert looks, plan
    if not reads_all:
        assert all(look.startswith("Index Cond") for look in looks), plan
        assert "Join Filter" not in plan, plan


@pytest.fixture
async def session(sender: Sender) -> AsyncIterator[OutboxSession]:
    """A relay's session on tables that were empty when they were looked at."""
    await sender.set_up(topic="t")
    await sender.admin.execute("VACUUM ANALYZE")
    made = OutboxSession(sender.config(database=sender.dsns[OUTBOX_RELAY]), "test")
    yield made
    await made.close()


@pytest.fixture
async def callback(sender: Sender) -> AsyncIterator[asyncpg.Connection]:
    """A session as a callback service's, on a store that was empty when it was looked at."""
    async with sender.admin.transaction():
        await sender.admin.execute(PARTS["callback"].text())
    await sender.admin.execute("VACUUM ANALYZE")
    connection = await asyncpg.connect(sender.dsns[SUPERUSER], server_settings=PLAN_SETTINGS)
    yield connection
    await connection.close()


@pytest.mark.parametrize("name", OUTBOX)
async def test_statement_looks_rows_up_also_by_the_statistics_of_an_empty_table(
    session: OutboxSession, name: str
) -> None:
    statement, values = OUTBOX[name]
    check_plan(
        await session.fetch(f"EXPLAIN {statement}", *values), reads_all=name == "oldest_unfinished"
    )


@pytest.mark.parametrize("name", CALLBACK)
async def test_callback_statement_looks_rows_up_by_the_statistics_of_an_empty_table(
    callback: asyncpg.Connection, name: str
) -> None:
    check_plan(await callback.fetch(f"EXPLAIN {CALLBACK_SQL[name]}", *CALLBACK[name]))


async def test_statements_look_rows_up_in_tables_that_have_grown(
    session: OutboxSession, sender: Sender
) -> None:
    business = await sender.connect()
    async with business.transaction():
        await outbox.add_many(
            business, [Message(each, "clearing", b"x") for each in draw_message_ids(ROWS)]
        )
    for look in ("SELECT", "ANALYZE"):  # never looked at since, and looked at
        await sender.admin.execute(look)
        for name, (statement, values) in OUTBOX.items():
            lines = await session.fetch(f"EXPLAIN {statement}", *values)
            check_plan(lines, reads_all=name == "oldest_unfinished")


def rows_read(node: dict[str, Any]) -> Iterator[float]:
    """Yield how many rows each look at a table took, as a plan that was executed shows it."""
    if "Relation Name" in node:
        rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        yield rows * node["Actual Loops"]
    for below in node.get("Plans", ()):
        yield from rows_read(below)


async def test_list_of_a_client_reads_its_own_messages_as_far_as_the_page_goes(
    session: OutboxSession, sender: Sender
) -> None:
    await sender.admin.execute("SELECT outbox_extend(now(), 24, 1)")
    ids = draw_message_ids(ROWS)
    senders = ["few" if n in (0, ROWS // 2, ROWS - 1) else "many" for n in range(ROWS)]
    await sender.admin.execute(
        "INSERT INTO outbox_message (message_id, destination, payload, sender)"
        " SELECT message_id, 'clearing', '', sender"
        "   FROM unnest($1::uuid[], $2::text[]) AS given (message_id, sender)", ids, senders,
    )  # fmt: skip
    await sender.admin.execute(
        "INSERT INTO outbox_done (message_id, consumer, destination, status, send_count)"
        " SELECT message_id, $2, 'clearing', 2, 1 FROM unnest($1::uuid[]) AS message_id",
        ids, CONSUMER,
    )  # fmt: skip
    for client, status, listed in (("few", None, 3), ("few", 5, 0), ("many", None, 10)):
        values = client, UUID(int=0), "", None, status, 10
        ((plan,),) = await session.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {PAGE}", *values)
        assert listed <= sum(rows_read(json.loads(plan)[0]["Plan"])) < 100, plan


@pytest.mark.parametrize("name", ["due", "claim_checks"])
async def test_what_is_due_is_read_as_far_as_the_limit_goes(
    session: OutboxSession, sender: Sender, name: str
) -> None:
    """The oldest first, and nothing of a sender that hangs."""
    is_check = name == "claim_checks"
    ids = draw_message_ids(ROWS)
    await sender.admin.execute(
        "INSERT INTO outbox_message (message_id, destination, payload, sender)"
        " SELECT message_id, 'clearing', '', 'hangs' FROM unnest($1::uuid[]) AS message_id", ids,
    )  # fmt: skip
    await sender.admin.execute(
        "INSERT INTO outbox_pending (message_id, consumer, destination, status, is_decided, asked,"
        " next_send_at) SELECT message_id, $2, 'clearing', CASE WHEN $3 THEN 4 ELSE 0 END, NOT $3,"
        " CASE WHEN $3 THEN CASE place % 2 WHEN 0 THEN 'hangs' ELSE '' END END,"
        " now() - interval '1 hour'"
        "   FROM unnest($1::uuid[]) WITH ORDINALITY AS given (message_id, place)",
        ids, CONSUMER, is_check,
    )  # fmt: skip
    now = datetime.now(UTC)
    statement, values = {
        "due": (SQL["due"], (NOW, 10, (0, 1), [], [], 10)),
        "claim_checks": (PREPARED_SQL["claim_checks"], (now, TOKENS[0], now, 10, ["hangs"], NOW)),
    }[name]
    ((plan,),) = await session.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *values)
    assert sum(rows_read(json.loads(plan)[0]["Plan"])) < 100, plan
    assert len(await session.fetch(statement, *values)) == 10


async def test_acknowledgement_is_a_heap_only_update(sender: Sender) -> None:
    """`init` to `confirmed` writes no index: the room on the page and the columns allow that."""
    await sender.set_up()
    business = await sender.connect()
    async with sender.relay() as relay:
        ids = draw_message_ids(2_000)
        async with relay.transaction(business) as transaction:
            await transaction.add_many([Message(each, "clearing", b"x") for each in ids])
        await sender.until_status(ids[-1], outbox.Status.CONFIRMED)
        await relay.settle()
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1"
    shown = "SELECT n_tup_upd >= 2000 FROM pg_stat_user_tables WHERE relname = 'outbox_pending'"
    await sender.until_true(shown)
    row = await sender.admin.fetchrow(counts, "outbox_pending")
    assert row["n_tup_hot_upd"] == row["n_tup_upd"] == 2_000
