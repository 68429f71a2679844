"""The chain in a real PostgreSQL, read with the auditor's role."""

# ruff: noqa: S608 - every value in a statement is a number of this file

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from chain_kernel.sql import AUDITOR
from chain_verifier.config import DatabaseSource, JournalSource, VerifyRequest
from chain_verifier.findings import Finding, Kind
from chain_verifier.report import Report, Verdict
from chain_verifier.spark.database import DatabaseTable
from chain_verifier.spark.table import HAS_NULL, MALFORMED
from chain_verifier.spark.verify import verify
from tests.stored_pages import execute

from ..agreement import verified_by_both
from ..planted_faults import CHAIN_ID, Row, chain_of, head_of, id_of, write_journal
from ..stored_rows import DROP_RULES, PAGE_ROWS, batches_of, store

ROWS = chain_of(random.Random(9), 300)
HEAD = head_of(ROWS)
BATCH_ROWS = 50
FIRST_BATCH = batches_of(ROWS, BATCH_ROWS)[0]
NO_NULL = "chain_page_no_null"


@pytest.fixture
def audit(database: str, role_dsn: Callable[[str], str]) -> DatabaseSource:
    asyncio.run(store(database, ROWS, BATCH_ROWS))
    return DatabaseSource(database=role_dsn(AUDITOR))


@pytest.fixture
def verified(spark: SparkSession, audit: DatabaseSource) -> Callable[..., Report]:
    """Verifies the stored chain by both modes."""

    def run(**options: Any) -> Report:
        given = {"bucket_bits": 5, "leaf_bits": 5} | options
        return verified_by_both(VerifyRequest(chain_id=CHAIN_ID, sources=(audit,), **given), spark)

    return run


def finding(kind: Kind, **fields: Any) -> Finding:
    return Finding(kind=kind, source="database", **fields)


def deleted(index: int) -> str:
    return f"DELETE FROM chain_event WHERE id = {ROWS[index].id}"


def deleted_with_its_link(index: int) -> list[str]:
    row, after = ROWS[index : index + 2]
    return [deleted(index), f"UPDATE chain_event SET pid = {row.pid} WHERE id = {after.id}"]


def gap(index: int) -> Finding:
    return finding(Kind.GAP, after_id=ROWS[index].pid, until_id=ROWS[index].id)


class Harm(NamedTuple):
    """What is done to the tables, what is asked for, and what must be found."""

    statements: Sequence[str]
    findings: Sequence[Finding] = ()
    start: int = 0
    head: int | None = None


NO_PAYLOAD = (
    f"ALTER TABLE chain_page DROP CONSTRAINT {NO_NULL}",
    f"UPDATE chain_event SET payload = NULL WHERE id = {ROWS[7].id}",
)
NULL = finding(Kind.NULL, id=ROWS[7].id, pid=ROWS[7].pid, columns=("payload",))
WITHIN = PAGE_ROWS + 1
"""A row in the midst of a page."""
LATER_ROWS = len(ROWS) - len(FIRST_BATCH)
PAGE = ROWS[2 * PAGE_ROWS : 3 * PAGE_ROWS]
OF_PAGE = f"WHERE last_id = {PAGE[-1].id}"

HARMS = {
    "nothing": Harm([]),
    "rows deleted": Harm([deleted(n) for n in (0, 150, 299)], [gap(n) for n in (0, 150, 299)]),
    "a row deleted before the start": Harm([deleted(WITHIN - 1)], start=id_of(ROWS[WITHIN])),
    "rows deleted on both sides of the start": Harm(
        [deleted(WITHIN - 1), deleted(WITHIN + 1)], [gap(WITHIN + 1)], start=id_of(ROWS[WITHIN])
    ),
    "a row and the link to it": Harm(
        deleted_with_its_link(20),
        [finding(Kind.ROW_COUNT, count=len(ROWS) - 1, expected_count=len(ROWS))],
    ),
    "a row and the link to it after the end of a batch": Harm(
        deleted_with_its_link(150),
        [finding(Kind.ROW_COUNT, count=LATER_ROWS - 1, expected_count=LATER_ROWS)],
        start=id_of(FIRST_BATCH[-1]),
    ),
    "a head that is known to be further": Harm(
        [], [finding(Kind.GAP, after_id=HEAD, until_id=HEAD + 10)], head=HEAD + 10
    ),
    "a head that is known to have been less": Harm([], head=HEAD - 10),
    "a NULL without a rule": Harm(NO_PAYLOAD, [NULL]),
    # A constraint that was never validated says nothing of the rows that were there before.
    "a NULL older than its rule": Harm(
        [*NO_PAYLOAD, f"ALTER TABLE chain_page ADD CONSTRAINT {NO_NULL} {{rule}} NOT VALID"],
        [NULL],
    ),
    "a NULL among the ids of a page, and in the link to it": Harm(
        [*DROP_RULES, f"UPDATE chain_page SET ids[2] = NULL, pids[3] = NULL {OF_PAGE}"],
        [
            finding(Kind.GAP, after_id=PAGE[0].id, until_id=PAGE[2].id),
            finding(Kind.NULL, pid=PAGE[1].pid, columns=("id",)),
            finding(Kind.NULL, id=PAGE[2].id, columns=("pid",)),
        ],
    ),
    "a page without ids after the start": Harm(
        [*DROP_RULES, f"UPDATE chain_page SET ids = '{{{{}}}}' {OF_PAGE}"],
        [
            finding(Kind.GAP, after_id=PAGE[0].pid, until_id=PAGE[-1].id),
            *(finding(Kind.NULL, pid=row.pid, columns=("id",)) for row in PAGE),
            finding(
                Kind.WRONG_PAGE,
                id=PAGE[0].id,
                until_id=PAGE[-1].id,
                columns=("ids", "pids", "keys", "event_times_ns", "payloads"),
            ),
        ],
        start=id_of(ROWS[PAGE_ROWS - 1]),
    ),
}
IN_THE_MERGE = ("nothing", "rows deleted", "a NULL older than its rule")


RULE = (
    "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
    f" WHERE conrelid = 'chain_page'::regclass AND conname = '{NO_NULL}'"
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.merge) if name in IN_THE_MERGE else name
     for name in HARMS],
)  # fmt: skip
def test_database_is_complete_or_what_was_done_to_it_is_named(
    verified: Callable[..., Report], database: str, name: str
) -> None:
    harm = HARMS[name]
    ((rule,),) = asyncio.run(execute(database, RULE))
    asyncio.run(execute(database, *(each.format(rule=rule) for each in harm.statements)))
    report = verified(start=harm.start, head=harm.head)
    assert report.findings == tuple(harm.findings)
    assert report.verdict is (Verdict.BROKEN if harm.findings else Verdict.COMPLETE)
    assert report.head == max(HEAD, harm.head or 0)


def test_database_with_an_empty_chain_is_complete(
    spark: SparkSession, database: str, role_dsn: Callable[[str], str]
) -> None:
    asyncio.run(store(database, []))
    source = DatabaseSource(database=role_dsn(AUDITOR))
    report = verified_by_both(VerifyRequest(chain_id=CHAIN_ID, sources=(source,)), spark)
    assert (report.verdict, report.head, report.sources[0].rows) == (Verdict.COMPLETE, 0, 0)


def test_database_that_grows_meanwhile_leaves_the_new_rows_of_a_journal_out(
    spark: SparkSession, database: str, audit: DatabaseSource, tmp_path: Path
) -> None:
    new = Row(HEAD + 1, HEAD, "new")
    journal = JournalSource(path=str(write_journal(tmp_path / "j", [*ROWS, new])))

    def commit_while_checking(line: str) -> None:
        if line == "checking database":
            asyncio.run(
                execute(
                    database,
                    f"INSERT INTO chain_event VALUES ({CHAIN_ID}, {new.id}, {HEAD}, 'new', 0, '')",
                    f"INSERT INTO chain_batch VALUES ({CHAIN_ID}, {new.id}, {new.id}, {HEAD}, 1, 2,"
                    " sha256('x'), now())",
                    f"UPDATE chain_head SET last_id = {new.id}",
                )
            )

    request = VerifyRequest(chain_id=CHAIN_ID, sources=(audit, journal))
    report = verify(request, spark, commit_while_checking)
    assert (report.verdict, report.head) == (Verdict.COMPLETE, HEAD)
    assert "were committed since" in report.sources[1].notes[0]


def test_database_read_over_several_connections_is_the_same(
    verified: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chain_verifier.spark.database._ROWS_A_CONNECTION", 100)
    report = verified()
    assert (report.verdict, report.sources[0].rows) == (Verdict.COMPLETE, len(ROWS))


def test_database_that_forbids_nulls_is_not_asked_for_them(
    spark: SparkSession, audit: DatabaseSource
) -> None:
    links = DatabaseTable(spark, audit, CHAIN_ID).rows_with(())
    assert set(links.columns) == {"chain_id", "id", "pid", HAS_NULL, MALFORMED}
    assert links.agg(F.count_if(HAS_NULL)).collect()[0][0] == 0
    # Statements and logins reach workers beside the plan, which Spark shows and logs.
    java: Any = links
    assert "chain_page" not in java._jdf.queryExecution().toString()
