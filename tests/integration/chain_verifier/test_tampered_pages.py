"""Pages changed by their owner, in every way there is: found by exact ids, by both modes."""

# ruff: noqa: S608 - every value in a statement is a number or a name of this file

import asyncio
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from chain_kernel.sql import AUDITOR
from chain_verifier.config import DatabaseSource, VerifyRequest
from chain_verifier.database_facts import SQL, filled
from chain_verifier.findings import Finding, Kind
from chain_verifier.local.verify import verify_locally
from tests.opened import connected
from tests.stored_pages import execute

from .agreement import require_first, verified_by_both
from .planted_faults import CHAIN_ID, Row, as_one, chain_of, head_of, id_of
from .stored_rows import BATCH_ROWS, DROP_RULES, PAGE_ROWS, batches_of, store

Harm = tuple[list[str], set[Finding], set[Finding]]
"""Statements, what the links say, and what the seals say beside that."""

ROWS = chain_of(random.Random(23), 900)
HEAD = head_of(ROWS)
BATCHES = batches_of(ROWS)

COLUMNS = ("ids", "pids", "keys", "event_times_ns", "payloads")


def finding(kind: Kind, **fields: Any) -> Finding:
    return Finding(kind=kind, source="database", **fields)


def gap(after_id: int, until_id: int) -> Finding:
    return finding(Kind.GAP, after_id=after_id, until_id=until_id)


def late(first_id: int, last_id: int, after_id: int, count: int) -> Finding:
    ends = {"id": first_id, "until_id": last_id, "after_id": after_id}
    return finding(Kind.OUT_OF_ORDER, **ends, count=count)


def every(column_of: str, columns: Sequence[str] = COLUMNS) -> str:
    """An assignment to each of `columns`, which stand in for `{}`."""
    return ", ".join(f"{name} = {column_of.format(name)}" for name in columns)


def array(*ids: int) -> str:
    return f"'{{{', '.join(map(str, ids))}}}'::bigint[]"


def null(row: Row, *columns: str) -> Finding:
    return finding(Kind.NULL, id=row.id, pid=row.pid, columns=columns)


class Spot:
    """A batch that is harmed, and its first page, which holds four of its ten rows."""

    def __init__(self, batch: Sequence[Row]) -> None:
        self.page = batch[:PAGE_ROWS]
        self.ids = [id_of(row) for row in self.page]
        self.last = self.ids[-1]
        self.before = self.page[0].pid or 0
        self.next_last = id_of(batch[2 * PAGE_ROWS - 1])
        self.batch_last = id_of(batch[-1])
        self.ends: dict[str, Any] = {"id": self.ids[0], "until_id": self.batch_last}
        self.mismatch = finding(Kind.SEAL_MISMATCH, **self.ends)

        self.from_next = (
            f" FROM chain_page AS a WHERE p.last_id = {self.next_last} AND a.last_id = {self.last}"
        )

    def change(self, assignments: str) -> str:
        return f"UPDATE chain_page SET {assignments} WHERE last_id = {self.last}"

    def batch_count(self, count: int) -> Finding:
        return finding(Kind.BATCH_COUNT, **self.ends, count=count, expected_count=10)

    def wrong_page(
        self, first_id: int | None = None, last_id: int | None = None, **fields: Any
    ) -> Finding:
        ends = {"id": first_id or self.ids[0], "until_id": last_id or self.last}
        return finding(Kind.WRONG_PAGE, **(ends | {"ids": (self.ids[0], self.last)} | fields))


SPOTS = [Spot(batch) for batch in BATCHES[2:-2:3] if len(batch) == BATCH_ROWS]
"""Each has whole batches on both sides."""


def within_rules(at: Spot) -> dict[str, Harm]:
    """What the rules of the table let an owner do."""
    return {
        "a row taken out": (
            [at.change(every("{0}[:1] || {0}[3:]"))],
            {gap(at.ids[0], at.ids[1])},
            {at.batch_count(9)},
        ),
        "a row's content changed": ([at.change("payloads[2] = 'x'::bytea")], set(), {at.mismatch}),
        "a page added": (
            [
                f"INSERT INTO chain_page SELECT {CHAIN_ID}, {at.last + 1}, {at.last + 1},"
                f" {array(at.last + 1)}, pids[4:], keys[4:], event_times_ns[4:], payloads[4:]"
                f" FROM chain_page WHERE last_id = {at.last}"
            ],
            {finding(Kind.FORK, pid=at.ids[2], ids=(at.last, at.last + 1))},
            {at.batch_count(11)},
        ),
        "a page added behind the head": (
            [
                f"INSERT INTO chain_page SELECT {CHAIN_ID}, {HEAD + 1}, {HEAD + 1},"
                f" {array(HEAD + 1)}, {array(HEAD)}, keys[4:], event_times_ns[4:], payloads[4:]"
                f" FROM chain_page WHERE last_id = {at.last}"
            ],
            {finding(Kind.BEYOND_HEAD, id=HEAD + 1, pid=HEAD, until_id=HEAD)},
            set(),
        ),
        "rows of a page in one more page": (
            [
                f"INSERT INTO chain_page SELECT {CHAIN_ID}, {at.ids[1]}, {at.ids[2]}, "
                + ", ".join(f"{name}[2:3]" for name in COLUMNS)
                + f" FROM chain_page WHERE last_id = {at.last}"
            ],
            {
                as_one(finding(Kind.DUPLICATE, id=row_id, count=2) for row_id in at.ids[1:3]),
                late(at.ids[0], at.ids[1], at.ids[2], 2),
            },
            {at.batch_count(12)},
        ),
        "a page whose range holds the next one": (
            [
                "UPDATE chain_page AS p SET first_id = a.first_id, "
                + ", ".join(f"{name} = a.{name} || p.{name}" for name in COLUMNS)
                + at.from_next
            ],
            {
                as_one(finding(Kind.DUPLICATE, id=row_id, count=2) for row_id in at.ids),
                late(at.ids[0], at.ids[2], at.last, 3),
            },
            {at.batch_count(14)},
        ),
        "the first rows of a page in the next one": (
            [
                "UPDATE chain_page AS p SET first_id = a.first_id, "
                + ", ".join(f"{name} = a.{name}[:2] || p.{name}" for name in COLUMNS)
                + at.from_next,
                at.change(every("{0}[3:]") + f", first_id = {at.ids[2]}"),
            ],
            {late(at.ids[0], at.ids[1], at.last, 2)},
            {finding(Kind.BATCH_RANGE, **at.ends, ids=(at.ids[2], at.batch_last), pid=at.ids[1])},
        ),
    }


def wrong_ends(at: Spot) -> dict[str, Harm]:
    """Pages whose first or last id is not that of their rows."""
    first_batch: dict[str, Any] = {"id": ROWS[0].id, "until_id": BATCHES[0][-1].id}
    moved = finding(Kind.BATCH_COUNT, **first_batch, count=14, expected_count=10)
    wrong = at.wrong_page
    by_name: dict[str, tuple[str, int, set[Finding], set[Finding]]] = {
        "another first id": ("first_id", at.ids[1], {wrong(at.ids[1])}, set()),
        "a first id in the page before": (
            "first_id", at.before - 1, {wrong(at.before - 1)}, set()
        ),
        "a last id below its last row": (
            "last_id", at.ids[2], {wrong(last_id=at.ids[2])}, set()
        ),
        "a last id above its last row": (
            "last_id", at.last + 1, {wrong(last_id=at.last + 1)}, set()
        ),
        "a last id below all ids": ("last_id", 1, {wrong(last_id=1)}, {at.batch_count(6), moved}),
        "a last id behind the head": (
            "last_id", HEAD + 9, {wrong(last_id=HEAD + 9), late(at.ids[0], at.last, HEAD, 4)},
            {at.batch_count(6)},
        ),
    }  # fmt: skip
    return {
        name: ([at.change(f"{column} = {value}")], links, seals)
        for name, (column, value, links, seals) in by_name.items()
    }


def short_arrays(at: Spot) -> dict[str, Harm]:
    """Pages with one value fewer in one of their arrays."""
    no_id = finding(Kind.NULL, pid=at.ids[2], columns=("id",))
    no_pid = finding(Kind.NULL, id=at.last, columns=("pid",))
    hole = gap(at.ids[2], at.last)
    faults = {
        "ids": {
            at.wrong_page(ids=(at.ids[0], at.ids[2]), columns=COLUMNS[1:]), no_id, hole
        },
        "pids": {at.wrong_page(columns=("pids",)), no_pid, hole},
    }  # fmt: skip
    for name in COLUMNS[2:]:
        value = name.removesuffix("s") if name != "event_times_ns" else "event_time_ns"
        faults[name] = {at.wrong_page(columns=(name,)), null(at.page[3], value)}
    return {
        f"one of the {name} taken out": ([at.change(f"{name} = {name}[:3]")], links, {at.mismatch})
        for name, links in faults.items()
    }


def wrong_shapes(at: Spot) -> dict[str, Harm]:
    """Pages whose arrays PostgreSQL counts otherwise, or that hold a NULL."""
    halves = "ids = ARRAY[ids[:2], ids[3:]], payloads = ARRAY[payloads[:2], payloads[3:]]"
    no_id = finding(Kind.NULL, pid=at.page[1].pid, columns=("id",))
    faults = {
        "counted from 0": (
            "keys = ('[0:3]=' || keys::text)::text[]", {at.wrong_page(columns=("keys",))}
        ),
        "of two dimensions": (halves, {at.wrong_page(ids=(), columns=("ids", "payloads"))}),
        "a NULL among keys": ("keys[2] = NULL", {null(at.page[1], "key")}),
        "a NULL among ids": ("ids[2] = NULL", {no_id, gap(at.ids[0], at.ids[1])}),
        "an id far outside": (
            f"ids[2] = {HEAD + 50}",
            {
                gap(at.ids[0], at.ids[1]), late(at.ids[2], at.last, HEAD + 50, 2),
                finding(Kind.BEYOND_HEAD, id=HEAD + 50, pid=at.ids[0], until_id=HEAD),
            },
        ),
    }  # fmt: skip
    return {name: ([at.change(act)], links, {at.mismatch}) for name, (act, links) in faults.items()}


def wrong_pages(at: Spot) -> dict[str, Harm]:
    """Pages without rows, or there twice."""
    return {
        "no payloads at all": (
            ["ALTER TABLE chain_page ALTER payloads DROP NOT NULL", at.change("payloads = NULL")],
            {at.wrong_page(columns=("payloads",)), as_one(null(row, "payload") for row in at.page)},
            {at.mismatch},
        ),
        "no rows": (
            [at.change(every("'{{}}'"))],
            {at.wrong_page(ids=(), columns=COLUMNS), gap(at.before, at.last)},
            {at.batch_count(6)},
        ),
        "a page twice": (
            [
                "ALTER TABLE chain_page DROP CONSTRAINT chain_page_pkey CASCADE",
                f"INSERT INTO chain_page SELECT * FROM chain_page WHERE last_id = {at.last}",
            ],
            {as_one(finding(Kind.DUPLICATE, id=row_id, count=2) for row_id in at.ids)},
            {at.batch_count(14)},
        ),
    }


def against_rules(at: Spot) -> dict[str, Harm]:
    """What an owner can do who drops the rules of the table first."""
    return wrong_ends(at) | short_arrays(at) | wrong_shapes(at) | wrong_pages(at)


DROPPED: Harm = ([*DROP_RULES], set(), set())
ALONE = (
    "a page added behind the head", "a last id below all ids", "a last id behind the head",
    "an id far outside",
)  # fmt: skip
"""Their findings are not of their batch alone."""


@pytest.fixture
def harmed(
    spark: SparkSession, database: str, role_dsn: Callable[[str], str]
) -> Callable[..., None]:
    """Stores a chain in pages, harms it, and holds both modes to what they find."""
    asyncio.run(store(database, ROWS))

    def run(*harms: Harm) -> None:
        by_links = {one for _, links, _ in harms for one in links}
        expected = by_links | {one for *_, seals in harms for one in seals}
        asyncio.run(execute(database, *(one for statements, *_ in harms for one in statements)))
        source = DatabaseSource(database=role_dsn(AUDITOR))
        request = VerifyRequest(
            chain_id=CHAIN_ID, sources=(source,), bucket_bits=5, leaf_bits=5, seals=True
        )
        require_first(verify_locally(replace(request, seals=False)).findings, by_links)
        found = verified_by_both(request, spark).findings
        assert (set(found), len(found)) == (expected, len(expected))

    return run


@pytest.mark.guarantee("G13")
def test_pages_harmed_within_their_rules_are_found_by_exact_ids(
    harmed: Callable[..., None],
) -> None:
    assert len(within_rules(SPOTS[0])) < len(SPOTS)
    harmed(*harms_of(within_rules))


def harms_of(made: Callable[[Spot], dict[str, Harm]]) -> Iterator[Harm]:
    """Each harm that is found in its batch alone, in a batch of its own."""
    names = [name for name in made(SPOTS[0]) if name not in ALONE]
    for name, spot in zip(names, SPOTS, strict=False):
        yield made(spot)[name]


@pytest.mark.nightly
def test_pages_harmed_against_their_rules_are_found_by_exact_ids(
    harmed: Callable[..., None],
) -> None:
    assert len(against_rules(SPOTS[0])) < len(SPOTS)
    harmed(DROPPED, *harms_of(against_rules))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALONE)
def test_page_harmed_so_that_others_report_it_is_found_by_exact_ids(
    harmed: Callable[..., None], name: str
) -> None:
    within = within_rules(SPOTS[0])
    harmed(*([within[name]] if name in within else [DROPPED, against_rules(SPOTS[0])[name]]))


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


def test_view_and_functions_that_lie_are_not_asked(harmed: Callable[..., None]) -> None:
    """The owner may make them for the very types of a page, which PostgreSQL then prefers."""
    harmed(([*LIES], set(), set()))
    harmed(within_rules(SPOTS[0])["a row taken out"])


STATEMENTS = (
    ("head", ([0],)), ("parts", (2, 0)), ("edges", (True,)), ("page_faults", (True,)),
    ("pages", (0, 9, 9, 9)), ("sealed_sizes", (0, 9, 9)), ("sealed", ()),
)  # fmt: skip


@pytest.mark.parametrize(("name", "values"), STATEMENTS, ids=[name for name, _ in STATEMENTS])
def test_statement_is_planned_for_the_partitions_of_its_chain_alone(
    database: str, name: str, values: tuple[Any, ...]
) -> None:
    """Planning costs the same with one chain and with ten thousand."""
    asyncio.run(store(database, ROWS))
    statement = filled(SQL[name], [CHAIN_ID] if name == "head" else CHAIN_ID, *values)
    found = asyncio.run(_tables(database, f"SELECT * FROM ({statement}) s"))
    assert {table.split("_")[2] for table in found} <= {str(CHAIN_ID)}
    assert found or name == "parts"


def test_range_of_a_statement_is_read_from_the_partition_that_holds_it(database: str) -> None:
    """Each connection of Spark reads a range, which it names outside of the statement."""
    asyncio.run(store(database, ROWS))
    statement = filled(SQL["edges"], CHAIN_ID, True)
    within = f"last_id > {SPOTS[0].before} AND last_id <= {SPOTS[0].batch_last}"
    found = asyncio.run(_tables(database, f"SELECT * FROM ({statement}) s WHERE {within}"))
    assert found == {f"chain_page_{CHAIN_ID}_0"}


async def _tables(dsn: str, statement: str) -> set[str]:
    """The partitions of pages that a plan looks at, beside those of another chain.

    Whatever a planner opens it locks: also what it leaves out of its plan in the end.
    """
    async with connected(dsn) as connection:
        await connection.execute("SELECT chain_create(8, sha256(''), 'eight', 0, 200)")
        async with connection.transaction():
            plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement}")
            locked = await connection.fetchval(
                "SELECT count(*) FROM pg_locks"
                " WHERE pid = pg_backend_pid() AND relation::regclass::text ~ '^chain_page_8(_|$)'"
            )
        assert not locked, "the planner opened another chain's partitions"
        return set(re.findall(r'"Relation Name": "(chain_page_[0-9_]+)"', plan))
