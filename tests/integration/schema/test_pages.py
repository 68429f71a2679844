"""What a page may be, and what the two ways to read its rows cost."""

import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from chain_kernel.sql import GAP_READER, SEQUENCER_WRITER

from .conftest import Connect

PAGE = {
    "first_id": "3",
    "last_id": "7",
    "ids": "'{3,7}'",
    "pids": "'{2,3}'",
    "keys": "'{a,b}'",
    "times": "'{0,0}'",
    "payloads": r"""'{"\\x00",""}'""",
}


def insert(**changed: str) -> str:
    return f"INSERT INTO chain_page VALUES (1, {', '.join((PAGE | changed).values())})"  # noqa: S608


async def test_page_with_equal_columns_goes_in(connect: Connect) -> None:
    writer = await connect(SEQUENCER_WRITER)
    await writer.execute(insert())
    rows = await writer.fetch("SELECT id, pid, key, payload FROM chain_event ORDER BY id")
    assert [tuple(row) for row in rows] == [(3, 2, "a", b"\0"), (7, 3, "b", b"")]


@pytest.mark.parametrize(
    "changed",
    [
        {"first_id": "2"},
        {"last_id": "8"},
        {"ids": "'{3,5,7}'"},
        {"pids": "'{2}'"},
        {"pids": "'{3,3}'"},
        {"keys": "'{a,b,c}'"},
        {"keys": "'[0:1]={a,b}'"},
        {"keys": "'{{a,b}}'"},
        {"times": "'{0}'"},
        {"payloads": "'{}'"},
        {"ids": "'[0:1]={3,7}'"},
        {"ids": "'{{3,7}}'"},
        {"ids": "'{}'", "pids": "'{}'", "keys": "'{}'", "times": "'{}'", "payloads": "'{}'"},
        {"pids": "'{2,NULL}'"},
        {"keys": "'{a,NULL}'"},
        {"times": "'{0,NULL}'"},
        {"payloads": r"""'{"",NULL}'"""},
    ],
    ids=str,
)
async def test_page_of_unfit_columns_is_refused(connect: Connect, changed: dict[str, str]) -> None:
    writer = await connect(SEQUENCER_WRITER)
    with pytest.raises(asyncpg.CheckViolationError, match="chain_page_"):
        await writer.execute(insert(**changed))


PAGES, PAGE_ROWS = 1_000, 20


async def fill(superuser: asyncpg.Connection) -> None:
    """A chain of many pages, beside another one."""
    await superuser.execute("SELECT chain_create(2, sha256('g'), 'two', 0, 1000000)")
    await superuser.execute("SELECT chain_create(3, sha256('g'), 'three', 0, 2000)")
    for chain_id in (2, 3):
        for until in range(2_000, PAGES * PAGE_ROWS + 1_000, 2_000):
            await superuser.execute("SELECT chain_page_extend($1, $2)", chain_id, until)
        await superuser.execute(
            """
            INSERT INTO chain_page
            SELECT $1, min(n), max(n), array_agg(n), array_agg(n - 1), array_agg('k' || n),
                   array_agg(n), array_agg(sha256(int8send(n)))
              FROM generate_series(1, $2::bigint) AS n GROUP BY (n - 1) / $3
            """,
            chain_id,
            PAGES * PAGE_ROWS - 1,
            PAGE_ROWS,
        )
    await superuser.execute("ANALYZE chain_page")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def pages_read(reader: asyncpg.Connection, statement: str, *values: int) -> float:
    """Return how many pages were read; every one of them by the index."""
    explained = await reader.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *values)
    count = 0.0
    for node in nodes(json.loads(explained)[0]["Plan"]):
        table = str(node.get("Relation Name", ""))
        # An empty partition is read in any way.
        if table.startswith("chain_page") and node["Actual Rows"]:
            assert "Index" in node["Node Type"], node
            assert not node.get("Rows Removed by Filter", 0), node
            count += node["Actual Rows"] * node["Actual Loops"]
    return count


@pytest.mark.parametrize("chain_id", [2, 3], ids=["one partition", "many partitions"])
@pytest.mark.parametrize("plan_cache_mode", ["force_generic_plan", "force_custom_plan"])
async def test_range_of_ids_is_read_by_the_index_of_its_pages(
    connect: Connect, plan_cache_mode: str, chain_id: int
) -> None:
    await fill(await connect("postgres"))
    reader = await connect(GAP_READER)
    await reader.execute(f"SET plan_cache_mode = {plan_cache_mode}")
    statement = "SELECT * FROM chain_events($1, $2, $3)"
    for after, until, pages in (
        (122, 123, 1),
        (119, 121, 2),
        (4_000, 4_100, 5),
        (PAGES * PAGE_ROWS - 10, 10**6, 1),
    ):
        # One more is looked at to find the last page.
        assert await pages_read(reader, statement, chain_id, after, until) <= pages + 1
        rows = await reader.fetch(f"{statement} ORDER BY id", chain_id, after, until)
        expected = range(after + 1, min(until, PAGES * PAGE_ROWS - 1) + 1)
        assert [row["id"] for row in rows] == list(expected)
        assert {row["chain_id"] for row in rows} == {chain_id}
