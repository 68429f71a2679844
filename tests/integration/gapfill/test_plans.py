"""A fill costs what is missing, however long the chain is: the plans say so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from chain_kernel.clients.session import ONE_CHAIN_SETTINGS
from chain_kernel.model import TERMS_MAX
from chain_kernel.sql import load_sql
from gapfill import GapReader, GapReaderConfig

from .conftest import MakeStored

if TYPE_CHECKING:
    from chain_kernel.clients.postgres import Connection

PAGE_ROWS = 100
SQL = load_sql("gapfill", "queries.sql")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


READINGS: list[tuple[str, tuple[int | None, ...]]] = [
    ("standing", (7, 2_500, None, TERMS_MAX, PAGE_ROWS)),
    ("standing", (7, 2_500, 2_000, TERMS_MAX, PAGE_ROWS)),
    ("page", (7, 2_500, 2_532, PAGE_ROWS, 8_000_000, 16, 16)),
    ("page", (7, 2_500, 1_000_000, PAGE_ROWS, 8_000_000, PAGE_ROWS, 16)),
    ("page", (7, 2_500, 2_600, PAGE_ROWS, 8_000_000, 16, 0)),
    ("page", (7, 0, 1_000_000, PAGE_ROWS, 8_000_000, PAGE_ROWS, 0)),
    ("batches_after", (7, 2_500, PAGE_ROWS)),
    ("place", (7,)),
]


@pytest.mark.parametrize("plan_cache_mode", ["force_generic_plan", "force_custom_plan"])
async def test_statements_read_the_chain_by_index_and_no_more_than_a_page(
    make_stored: MakeStored, admin: asyncpg.Connection, gap_dsn: str, plan_cache_mode: str
) -> None:
    stored = await make_stored([5] * 200)
    await stored.commit(7_200)
    assert await admin.fetchval("SELECT count(*) FROM chain_page") == 1_000
    await admin.execute(
        "INSERT INTO chain_term SELECT 7, n, decode(lpad(to_hex(n), 32, '0'), 'hex'),"
        " decode(repeat('00', 32), 'hex'), 'o', 0, 1, 1 FROM generate_series(2, 2_000) AS n"
    )
    await admin.execute("ANALYZE chain_page; ANALYZE chain_batch; ANALYZE chain_term")
    login = await asyncpg.connect(gap_dsn, server_settings=ONE_CHAIN_SETTINGS)
    await login.execute(f"SET plan_cache_mode = {plan_cache_mode}")
    for name, values in READINGS:
        (text,) = await login.fetchrow(f"EXPLAIN (ANALYZE, FORMAT JSON) {SQL[name]}", *values)
        for node in nodes(json.loads(text)[0]["Plan"]):
            table = str(node.get("Relation Name", ""))
            if table.startswith(("chain_page", "chain_batch", "chain_term")):
                assert "Index" in node["Node Type"], (name, values, node)
                assert node["Actual Rows"] <= PAGE_ROWS + 1, (name, values, node)
    await login.close()


async def test_reader_locks_its_chain_alone(make_stored: MakeStored, gap_dsn: str) -> None:
    stored = await make_stored([5] * 20)
    await make_stored([5], chain_id=8)

    async def look(held: Connection) -> tuple[int, str]:
        (page,) = await held.fetch(
            "SELECT name, custom_plans FROM pg_prepared_statements WHERE statement LIKE $1",
            "%AS lacks%",
        )
        async with held.transaction():
            await held.execute(f"EXPLAIN EXECUTE {page['name']} (0, 100, 10, 8000000, 16, 16)")
            locked = await held.fetchval(
                "SELECT string_agg(relation::regclass::text, ' ') FROM pg_locks"
                " WHERE pid = pg_backend_pid()"
            )
        return page["custom_plans"], locked

    async with GapReader(GapReaderConfig(database=gap_dsn, chain_id=7)) as reader:
        for _ in range(8):
            async for _ in reader.runs(stored.chain.mark(0), stored.chain.ids[-1]):
                pass
        custom_plans, locked = await reader._connection.session.run(look)
    assert custom_plans == 0
    assert "chain_page_7" in locked
    assert "chain_page_8" not in locked
