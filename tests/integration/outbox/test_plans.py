"""The statements of the hot path go by the indexes, also with the statistics of an empty table."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from uuid import uuid4

import pytest

import outbox
from orderchain.roles import OUTBOX_RELAY
from outbox import Message, draw_message_ids
from outbox.session import Session
from outbox.statuses import Change, sources
from outbox.store import SQL

from .conftest import CONSUMER, Sender

pytestmark = pytest.mark.postgres

IDS = draw_message_ids(500)
TOKENS = [uuid4()] * 500
HOT = {
    "due": (datetime(1970, 1, 1, tzinfo=UTC), 100, (0, 1)),
    "claim": (IDS, [CONSUMER] * 500, [1.0] * 500, TOKENS[0]),
    "wait": (IDS, [CONSUMER] * 500, [1.0] * 500),
    "give_up": (IDS, [CONSUMER] * 500, ["why"] * 500, (0, 1)),
    "messages": (IDS, IDS[0], IDS[-1]),
    "acknowledged": (IDS, TOKENS, ["t"] * 500, [0] * 500, [0] * 500, (0, 1)),
    "done_by_broker": (IDS, TOKENS, (0, 1)),
    "failed": (IDS, TOKENS, ["why"] * 500, (0, 1)),
    "released": (IDS, TOKENS, (0, 1)),
    "applied": (IDS, [CONSUMER] * 500, sources(Change.APPLIED)),
    "known": (IDS, [CONSUMER] * 500),
    "oldest_unfinished": (),
}


@pytest.mark.parametrize("name", HOT)
async def test_statement_looks_rows_up_also_by_the_statistics_of_an_empty_table(
    sender: Sender, name: str
) -> None:
    await sender.set_up(topic="t")
    await sender.admin.execute("VACUUM ANALYZE")  # of tables that are empty
    session = Session(sender.config(database=sender.dsns[OUTBOX_RELAY]), "test")
    try:
        rows = await session.fetch(f"EXPLAIN {SQL[name]}", *HOT[name])
    finally:
        await session.close()
    plan = "\n".join(row[0] for row in rows)
    assert "Seq Scan on outbox_" not in plan, plan
    assert not re.search(r"(Hash|Merge) (Left )?Join", plan), plan
    # Each look at an index has a condition: none of them reads it whole, row after row.
    looks = re.findall(r"Index (?:Only )?Scan using .*(?:\n +(.*))?", plan)
    assert looks, plan
    if name != "oldest_unfinished":
        assert all(look.startswith("Index Cond") for look in looks), plan
        assert "Join Filter" not in plan, plan


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

    async def is_told() -> bool:
        row = await sender.admin.fetchrow(counts, "outbox_pending")
        return row["n_tup_upd"] >= 2_000

    await sender.until(is_told)
    row = await sender.admin.fetchrow(counts, "outbox_pending")
    assert row["n_tup_hot_upd"] == row["n_tup_upd"] == 2_000
