"""Pages changed by their owner, in every way there is: found by exact ids, by both modes."""

# ruff: noqa: S608 - every value in a statement is a number or a name of this file

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from msgspec.structs import replace

from chain_kernel.sql import AUDITOR
from chain_verifier.config import DatabaseSource, VerifyRequest
from chain_verifier.database_facts import SQL, filled
from chain_verifier.findings import Finding, Kind
from chain_verifier.local.verify import verify_locally
from tests.integration.chain_verifier.agreement import require_first, verified_by_both
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row, as_one, chain_of, head_of
from tests.integration.chain_verifier.stored_rows import (
    DROP_RULES,
    PAGE_ROWS,
    batches_of,
    execute,
    store,
)
from tests.lanes import at_night

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    Harm = tuple[list[str], set[Finding], set[Finding]]
    """Statements, what the links say, and what the seals say beside that."""

ROWS = chain_of(random.Random(23), 60)
HEAD = head_of(ROWS)
BATCHES = batches_of(ROWS)
PAGES = [batch[at : at + PAGE_ROWS] for batch in BATCHES for at in range(0, len(batch), PAGE_ROWS)]
BATCH = BATCHES[2]
"""The batch that is harmed, and its first page, which holds four of its ten rows."""
PAGE = BATCH[:PAGE_ROWS]
ID = [row.id or 0 for row in PAGE]
LAST = ID[-1]
BEFORE = PAGE[0].pid or 0
NEXT_LAST = BATCH[2 * PAGE_ROWS - 1].id or 0
BATCH_LAST = BATCH[-1].id or 0
ENDS: dict[str, Any] = {"id": ID[0], "until_id": BATCH_LAST}

COLUMNS = ("ids", "pids", "keys", "event_times_ns", "payloads")


def finding(kind: Kind, **fields: Any) -> Finding:
    return Finding(kind=kind, source="database", **fields)


def change(assignments: str, last_id: int = LAST) -> str:
    return f"UPDATE chain_page SET {assignments} WHERE last_id = {last_id}"


def every(column_of: str, columns: Sequence[str] = COLUMNS) -> str:
    """An assignment to each of `columns`, which stand in for `{}`."""
    return ", ".join(f"{name} = {column_of.format(name)}" for name in columns)


def array(*ids: int) -> str:
    return f"'{{{', '.join(map(str, ids))}}}'::bigint[]"


@pytest.fixture
def harmed(
    spark: SparkSession, database: str, role_dsn: Callable[[str], str]
) -> Callable[[Harm], None]:
    """Stores a chain of six batches in pages, harms it, and holds both modes to what they find."""
    asyncio.run(store(database, ROWS))

    def run(harm: Harm) -> None:
        statements, by_links, by_seals = harm
        asyncio.run(execute(database, *statements))
        source = DatabaseSource(database=role_dsn(AUDITOR))
        request = VerifyRequest(
            chain_id=CHAIN_ID, sources=(source,), bucket_bits=5, leaf_bits=5, seals=True
        )
        require_first(verify_locally(replace(request, seals=False)).findings, by_links)
        found = verified_by_both(request, spark).findings
        assert (set(found), len(found)) == (by_links | by_seals, len(by_links) + len(by_seals))

    return run


def batch_count(count: int, expected_count: int = 10, **ends: Any) -> Finding:
    return finding(Kind.BATCH_COUNT, **(ends or ENDS), count=count, expected_count=expected_count)


MISMATCH = finding(Kind.SEAL_MISMATCH, **ENDS)

BY_THE_RULES: dict[str, Harm] = {
    "a row taken out": (
        [change(every("{0}[:1] || {0}[3:]"))],
        {finding(Kind.GAP, after_id=ID[0], until_id=ID[1])},
        {batch_count(9)},
    ),
    "a row's content changed": (
        [change("payloads[2] = 'x'::bytea")],
        set(),
        {MISMATCH},
    ),
    "a page added": (
        [
            f"INSERT INTO chain_page SELECT {CHAIN_ID}, {LAST + 1}, {LAST + 1},"
            f" {array(LAST + 1)}, pids[4:], keys[4:], event_times_ns[4:], payloads[4:]"
            f" FROM chain_page WHERE last_id = {LAST}"
        ],
        {finding(Kind.FORK, pid=ID[2], ids=(LAST, LAST + 1))},
        {batch_count(11)},
    ),
    "a page added behind the head": (
        [
            f"INSERT INTO chain_page SELECT {CHAIN_ID}, {HEAD + 1}, {HEAD + 1},"
            f" {array(HEAD + 1)}, {array(HEAD)}, keys[4:], event_times_ns[4:], payloads[4:]"
            f" FROM chain_page WHERE last_id = {LAST}"
        ],
        {finding(Kind.BEYOND_HEAD, id=HEAD + 1, pid=HEAD, until_id=HEAD)},
        set(),
    ),
    "rows of a page in one more page": (
        [
            f"INSERT INTO chain_page SELECT {CHAIN_ID}, {ID[1]}, {ID[2]}, "
            + ", ".join(f"{name}[2:3]" for name in COLUMNS)
            + f" FROM chain_page WHERE last_id = {LAST}"
        ],
        {
            as_one(finding(Kind.DUPLICATE, id=row_id, count=2) for row_id in ID[1:3]),
            finding(Kind.OUT_OF_ORDER, id=ID[0], until_id=ID[1], after_id=ID[2], count=2),
        },
        {batch_count(12)},
    ),
    "a page whose range holds the next one": (
        [
            "UPDATE chain_page AS p SET first_id = a.first_id, "
            + ", ".join(f"{name} = a.{name} || p.{name}" for name in COLUMNS)
            + f" FROM chain_page AS a WHERE p.last_id = {NEXT_LAST} AND a.last_id = {LAST}"
        ],
        {
            as_one(finding(Kind.DUPLICATE, id=row_id, count=2) for row_id in ID),
            finding(Kind.OUT_OF_ORDER, id=ID[0], until_id=ID[2], after_id=LAST, count=3),
        },
        {batch_count(14)},
    ),
    "the first rows of a page in the next one": (
        [
            "UPDATE chain_page AS p SET first_id = a.first_id, "
            + ", ".join(f"{name} = a.{name}[:2] || p.{name}" for name in COLUMNS)
            + f" FROM chain_page AS a WHERE p.last_id = {NEXT_LAST} AND a.last_id = {LAST}",
            change(every("{0}[3:]") + f", first_id = {ID[2]}"),
        ],
        {finding(Kind.OUT_OF_ORDER, id=ID[0], until_id=ID[1], after_id=LAST, count=2)},
        {finding(Kind.BATCH_RANGE, **ENDS, ids=(ID[2], BATCH_LAST), pid=ID[1])},
    ),
}
"""What the rules of the table let an owner do."""
AT_EACH_MERGE = "a row's content changed"


@pytest.mark.invariant("S13")
@pytest.mark.parametrize(
    "name",
    [AT_EACH_MERGE, *at_night(*(name for name in BY_THE_RULES if name != AT_EACH_MERGE))],
)
def test_page_harmed_within_its_rules_is_found_by_exact_ids(
    harmed: Callable[[Harm], None], name: str
) -> None:
    harmed(BY_THE_RULES[name])


def wrong_page(first_id: int = ID[0], last_id: int = LAST, **fields: Any) -> Finding:
    ends = {"id": first_id, "until_id": last_id, "ids": (ID[0], LAST)}
    return finding(Kind.WRONG_PAGE, **(ends | fields))


def null(row: Row, *columns: str) -> Finding:
    return finding(Kind.NULL, id=row.id, pid=row.pid, columns=columns)


GAP_AT_LAST = finding(Kind.GAP, after_id=ID[2], until_id=LAST)

AGAINST_THE_RULES: dict[str, Harm] = {
    "another first id": (
        [change(f"first_id = {ID[1]}")],
        {wrong_page(ID[1])},
        set(),
    ),
    "a first id in the page before": (
        [change(f"first_id = {BEFORE - 1}")],
        {wrong_page(BEFORE - 1)},
        set(),
    ),
    "a last id below its last row": (
        [change(f"last_id = {ID[2]}")],
        {wrong_page(last_id=ID[2])},
        set(),
    ),
    "a last id above its last row": (
        [change(f"last_id = {LAST + 1}")],
        {wrong_page(last_id=LAST + 1)},
        set(),
    ),
    "a last id below all ids": (
        [change("last_id = 1")],
        {
            wrong_page(last_id=1),
        },
        {batch_count(6), batch_count(14, id=ROWS[0].id, until_id=BATCHES[0][-1].id)},
    ),
    "a last id behind the head": (
        [change(f"last_id = {HEAD + 9}")],
        {
            wrong_page(last_id=HEAD + 9),
            finding(Kind.OUT_OF_ORDER, id=ID[0], until_id=LAST, after_id=HEAD, count=4),
        },
        {batch_count(6)},
    ),
    "one of the ids taken out": (
        [change("ids = ids[:3]")],
        {
            wrong_page(ids=(ID[0], ID[2]), columns=COLUMNS[1:]),
            finding(Kind.NULL, pid=ID[2], columns=("id",)),
            GAP_AT_LAST,
        },
        {MISMATCH},
    ),
    "one of the pids taken out": (
        [change("pids = pids[:3]")],
        {
            wrong_page(columns=("pids",)),
            finding(Kind.NULL, id=LAST, columns=("pid",)),
            GAP_AT_LAST,
        },
        {MISMATCH},
    ),
    **{
        f"one of the {name} taken out": (
            [change(f"{name} = {name}[:3]")],
            {wrong_page(columns=(name,)), null(PAGE[3], name.removesuffix("s"))},
            {MISMATCH},
        )
        for name in ("keys", "payloads")
    },
    "one of the event times taken out": (
        [change("event_times_ns = event_times_ns[:3]")],
        {wrong_page(columns=("event_times_ns",)), null(PAGE[3], "event_time_ns")},
        {MISMATCH},
    ),
    "counted from 0": (
        [change("keys = ('[0:3]=' || keys::text)::text[]")],
        {wrong_page(columns=("keys",))},
        {MISMATCH},
    ),
    "of two dimensions": (
        [change("ids = ARRAY[ids[:2], ids[3:]], payloads = ARRAY[payloads[:2], payloads[3:]]")],
        {wrong_page(ids=(), columns=("ids", "payloads"))},
        {MISMATCH},
    ),
    "a NULL among keys": (
        [change("keys[2] = NULL")],
        {null(PAGE[1], "key")},
        {MISMATCH},
    ),
    "a NULL among ids": (
        [change("ids[2] = NULL")],
        {
            finding(Kind.NULL, pid=PAGE[1].pid, columns=("id",)),
            finding(Kind.GAP, after_id=ID[0], until_id=ID[1]),
        },
        {MISMATCH},
    ),
    "no payloads at all": (
        ["ALTER TABLE chain_page ALTER payloads DROP NOT NULL", change("payloads = NULL")],
        {wrong_page(columns=("payloads",)), as_one(null(row, "payload") for row in PAGE)},
        {MISMATCH},
    ),
    "no rows": (
        [change(every("'{{}}'"))],
        {wrong_page(ids=(), columns=COLUMNS), finding(Kind.GAP, after_id=BEFORE, until_id=LAST)},
        {batch_count(6)},
    ),
    "a page twice": (
        [
            "ALTER TABLE chain_page DROP CONSTRAINT chain_page_pkey CASCADE",
            f"INSERT INTO chain_page SELECT * FROM chain_page WHERE last_id = {LAST}",
        ],
        {as_one(finding(Kind.DUPLICATE, id=row_id, count=2) for row_id in ID)},
        {batch_count(14)},
    ),
    "an id far outside": (
        [change(f"ids[2] = {HEAD + 50}")],
        {
            finding(Kind.GAP, after_id=ID[0], until_id=ID[1]),
            finding(Kind.BEYOND_HEAD, id=HEAD + 50, pid=ID[0], until_id=HEAD),
            finding(Kind.OUT_OF_ORDER, id=ID[2], until_id=LAST, after_id=HEAD + 50, count=2),
        },
        {MISMATCH},
    ),
}


@pytest.mark.parametrize("name", at_night(*AGAINST_THE_RULES))
def test_page_harmed_against_its_rules_is_found_by_exact_ids(
    harmed: Callable[[Harm], None], name: str
) -> None:
    statements, by_links, by_seals = AGAINST_THE_RULES[name]
    harmed(([*DROP_RULES, *statements], by_links, by_seals))


LIES = (
    f"""CREATE OR REPLACE VIEW chain_event AS
        SELECT {CHAIN_ID} AS chain_id, 0::bigint AS id, 0::bigint AS pid, '' AS key,
               0::bigint AS event_time_ns, ''::bytea AS payload WHERE false""",
    "CREATE FUNCTION cardinality(bigint[]) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "CREATE FUNCTION array_dims(bigint[]) RETURNS text LANGUAGE sql AS 'SELECT NULL::text'",
    "CREATE FUNCTION array_send(bytea[]) RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea'",
    "CREATE FUNCTION unnest(bigint[]) RETURNS SETOF bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    """CREATE FUNCTION always(bigint[], bigint[]) RETURNS boolean LANGUAGE sql AS 'SELECT true'""",
    "CREATE OPERATOR = (LEFTARG = bigint[], RIGHTARG = bigint[], FUNCTION = always)",
)


def test_view_and_functions_that_lie_are_not_asked(harmed: Callable[[Harm], None]) -> None:
    """The owner may make them for the very types of a page, which PostgreSQL then prefers."""
    harmed(([*LIES], set(), set()))
    statements, by_links, by_seals = BY_THE_RULES["a row taken out"]
    harmed(([*statements], by_links, by_seals))


STATEMENTS = (
    ("head", ()), ("parts", (2, 0)), ("edges", (True,)), ("page_faults", (True,)), ("rows", ()),
    ("rows_at", ([5, 9],)), ("pages", (0, 9, 9, 9)),
    ("sealed_sizes", (0, 9, 9)), ("sealed", ()),
)  # fmt: skip


@pytest.mark.parametrize(("name", "values"), STATEMENTS, ids=[name for name, _ in STATEMENTS])
def test_statement_is_planned_for_the_partitions_of_its_chain_alone(
    database: str, name: str, values: tuple[Any, ...]
) -> None:
    """Planning costs the same with one chain and with ten thousand."""
    asyncio.run(store(database, ROWS))
    statement = filled(SQL[name], CHAIN_ID, *values)
    found = asyncio.run(_tables(database, f"SELECT * FROM ({statement}) s"))
    assert {table.split("_")[2] for table in found} <= {str(CHAIN_ID)}
    assert found or name == "parts"


@pytest.mark.parametrize(("name", "ids"), [("edges", "last_id"), ("rows", "page_last_id")])
def test_range_of_a_statement_is_read_from_the_partition_that_holds_it(
    database: str, name: str, ids: str
) -> None:
    """Each connection of Spark reads a range, which it names outside of the statement."""
    asyncio.run(store(database, ROWS))
    values = (True,) if name == "edges" else ()
    statement = filled(SQL[name], CHAIN_ID, *values)
    within = f"{ids} > {BEFORE} AND {ids} <= {BATCH_LAST}"
    found = asyncio.run(_tables(database, f"SELECT * FROM ({statement}) s WHERE {within}"))
    assert found == {f"chain_page_{CHAIN_ID}_0"}


async def _tables(dsn: str, statement: str) -> set[str]:
    """The partitions of pages that a plan looks at, beside those of another chain.

    Whatever a planner opens it locks: also what it leaves out of its plan in the end.
    """
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SELECT chain_create(8, sha256(''), 'eight', 0, 200)")
        async with connection.transaction():
            plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement}")
            locked = await connection.fetchval(
                "SELECT count(*) FROM pg_locks"
                " WHERE pid = pg_backend_pid() AND relation::regclass::text ~ '^chain_page_8(_|$)'"
            )
        assert not locked, "the planner opened another chain's partitions"
        return set(re.findall(r'"Relation Name": "(chain_page_[0-9_]+)"', plan))
    finally:
        await connection.close()
