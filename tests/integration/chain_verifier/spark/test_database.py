"""The chain in a real PostgreSQL, read with the auditor's role."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec.structs import replace
from pyspark.sql import functions as F  # noqa: N812

from chain_kernel.errors import ChainMissing, ConnectError, SchemaError, SettingError, SourceBroken
from chain_kernel.sql import AUDITOR, GAP_READER
from chain_verifier.config import DatabaseSource, JournalSource, VerifyRequest
from chain_verifier.findings import Finding, Kind
from chain_verifier.report import Report, Verdict
from chain_verifier.spark.database import DatabaseTable
from chain_verifier.spark.table import HAS_NULL
from chain_verifier.spark.verify import verify
from tests.integration.chain_verifier.agreement import verified_by_both
from tests.integration.chain_verifier.planted_faults import (
    CHAIN_ID,
    Row,
    chain_of,
    head_of,
    write_journal,
)
from tests.integration.chain_verifier.stored_rows import execute as execute_in
from tests.integration.chain_verifier.stored_rows import fields_of
from tests.stored_pages import store_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    Verified = Callable[..., Report]

ROWS = chain_of(random.Random(9), 300)
HEAD = head_of(ROWS)
PARTITION_IDS = 200
BATCH_ROWS = 50
PAGE_ROWS = 20


async def _store(dsn: str, rows: Sequence[Row]) -> None:
    """Create the chain and store `rows` in batches, as commits of a sequencer leave them."""
    connection = await asyncpg.connect(dsn)
    try:
        seal = bytes(32)
        await connection.execute(
            "SELECT chain_create($1, $2, $3, 0, $4)", CHAIN_ID, seal, "t", PARTITION_IDS
        )
        for first in range(0, len(rows), BATCH_ROWS):
            await _commit(connection, rows[first : first + BATCH_ROWS])
    finally:
        await connection.close()


async def _commit(connection: asyncpg.Connection[Any], rows: Sequence[Row]) -> None:
    last_id = rows[-1].id
    await connection.execute("SELECT chain_page_extend($1, $2)", CHAIN_ID, last_id)
    await store_rows(connection, CHAIN_ID, list(map(fields_of, rows)), PAGE_ROWS)
    await connection.execute(
        "INSERT INTO chain_batch VALUES ($1, $2, $3, $4, $5, 1, $6, now())",
        CHAIN_ID, rows[0].id, last_id, rows[0].pid, len(rows), bytes(32),
    )  # fmt: skip
    await connection.execute(
        "UPDATE chain_head SET last_id = $2 WHERE chain_id = $1", CHAIN_ID, last_id
    )


@pytest.fixture
def execute(database: str) -> Callable[..., None]:
    """Does to the database, as its owner, what no role of ours may do."""
    return lambda *statements: asyncio.run(execute_in(database, *statements))


@pytest.fixture
def stored(database: str) -> str:
    asyncio.run(_store(database, ROWS))
    return database


@pytest.fixture
def audit(stored: str, role_dsn: Callable[[str], str]) -> DatabaseSource:
    return DatabaseSource(database=role_dsn(AUDITOR))


@pytest.fixture
def verified(spark: SparkSession, audit: DatabaseSource) -> Verified:
    """Verifies the stored chain, alone or with journals, by both modes."""

    def run(*others: JournalSource, **options: Any) -> Report:
        request = VerifyRequest(
            chain_id=CHAIN_ID, sources=(*others, audit), bucket_bits=5, leaf_bits=5, **options
        )
        return verified_by_both(request, spark)

    return run


@pytest.mark.merge
def test_database_with_a_clean_chain_is_complete(verified: Verified) -> None:
    report = verified()
    assert report.verdict is Verdict.COMPLETE
    assert report.head == HEAD
    assert report.sources[0].rows == len(ROWS)


def test_database_with_an_empty_chain_is_complete(
    spark: SparkSession, database: str, role_dsn: Callable[[str], str]
) -> None:
    asyncio.run(_store(database, []))
    source = DatabaseSource(database=role_dsn(AUDITOR))
    report = verify(VerifyRequest(chain_id=CHAIN_ID, sources=(source,)), spark)
    assert (report.verdict, report.head, report.sources[0].rows) == (Verdict.COMPLETE, 0, 0)


@pytest.mark.merge
def test_database_with_rows_deleted_names_their_ids(
    verified: Verified, execute: Callable[..., None]
) -> None:
    rows = [ROWS[index] for index in (0, 150, 299)]
    for row in rows:
        execute(f"DELETE FROM chain_event WHERE chain_id = {CHAIN_ID} AND id = {row.id}")  # noqa: S608
    report = verified()
    assert report.findings == tuple(
        Finding(kind=Kind.GAP, source="database", after_id=row.pid, until_id=row.id) for row in rows
    )
    assert report.verdict is Verdict.BROKEN
    assert f"order {rows[1].id} is missing" in "\n".join(report.lines())


@pytest.mark.nightly
def test_database_from_within_a_page_is_looked_at_behind_the_start_alone(
    verified: Verified, execute: Callable[..., None]
) -> None:
    start, before, behind = ROWS[PAGE_ROWS + 6], ROWS[PAGE_ROWS + 2], ROWS[PAGE_ROWS + 10]
    assert verified(start=start.id).sources[0].rows == len(ROWS) - PAGE_ROWS - 7
    execute(f"DELETE FROM chain_event WHERE id = {before.id}")  # noqa: S608
    assert verified(start=start.id).verdict is Verdict.COMPLETE
    execute(f"DELETE FROM chain_event WHERE id = {behind.id}")  # noqa: S608
    expected = Finding(kind=Kind.GAP, source="database", after_id=behind.pid, until_id=behind.id)
    assert verified(start=start.id).findings == (expected,)


def test_database_with_a_row_and_the_link_to_it_taken_out_lacks_one_row(
    verified: Verified, execute: Callable[..., None]
) -> None:
    execute(
        f"DELETE FROM chain_event WHERE id = {ROWS[20].id}",  # noqa: S608
        f"UPDATE chain_event SET pid = {ROWS[20].pid} WHERE id = {ROWS[21].id}",  # noqa: S608
    )
    expected = Finding(
        kind=Kind.ROW_COUNT, source="database", count=len(ROWS) - 1, expected_count=len(ROWS)
    )
    assert verified().findings == (expected,)


def test_database_with_a_row_behind_its_head_names_it(
    verified: Verified, execute: Callable[..., None]
) -> None:
    execute(
        f"INSERT INTO chain_event VALUES ({CHAIN_ID}, {HEAD + 2}, {HEAD}, 'k', 0, '')"  # noqa: S608
    )
    expected = Finding(
        kind=Kind.BEYOND_HEAD, source="database", id=HEAD + 2, pid=HEAD, until_id=HEAD
    )
    assert verified().findings == (expected,)


def test_database_with_a_head_known_to_lie_further_lacks_the_tail(verified: Verified) -> None:
    expected = Finding(kind=Kind.GAP, source="database", after_id=HEAD, until_id=HEAD + 10)
    assert verified(head=HEAD + 10).findings == (expected,)
    assert verified(head=HEAD - 10).verdict is Verdict.COMPLETE


@pytest.mark.nightly
def test_database_against_journals_names_what_each_lacks_or_has_too_much(
    verified: Verified, tmp_path: Path
) -> None:
    """One whole; one that ends early; one with a row that was never committed, and one changed."""
    phantom = Row(HEAD + 1, HEAD, "phantom")
    changed = [replace(row, key="other") if row is ROWS[5] else row for row in ROWS]
    whole, short, other = (
        JournalSource(path=str(write_journal(tmp_path / name, rows)))
        for name, rows in (("whole", ROWS), ("short", ROWS[:-3]), ("other", [*changed, phantom]))
    )
    report = verified(whole, short, other)
    assert [comparison.against for comparison in report.comparisons] == ["database"] * 3
    assert [one.row_counts for one in report.comparisons] == [{}, {"lacking": 3}, {"differing": 1}]
    verdicts = [source.verdict for source in report.sources]
    assert verdicts == [Verdict.COMPLETE, Verdict.COMPLETE, Verdict.BROKEN, Verdict.BROKEN]
    assert set(report.findings) == {
        Finding(kind=Kind.GAP, source=short.name, after_id=ROWS[-4].id, until_id=HEAD),
        Finding(
            kind=Kind.LACKING, source=short.name, against="database", id=ROWS[-3].id,
            last_id=HEAD, rows=3,
        ),
        Finding(
            kind=Kind.BEYOND_HEAD, source=other.name, id=phantom.id, pid=HEAD, until_id=HEAD
        ),
        Finding(
            kind=Kind.DIFFERING, source=other.name, against="database", id=ROWS[5].id,
            columns=("key",),
        ),
    }  # fmt: skip


def test_database_that_grows_meanwhile_leaves_the_new_rows_of_a_journal_out(
    spark: SparkSession, stored: str, audit: DatabaseSource, tmp_path: Path
) -> None:
    new = Row(HEAD + 1, HEAD, "new")
    journal = JournalSource(path=str(write_journal(tmp_path / "j", [*ROWS, new])))

    def commit_while_checking(line: str) -> None:
        if line == "checking database":
            asyncio.run(_commit_one(stored, new))

    request = VerifyRequest(chain_id=CHAIN_ID, sources=(audit, journal))
    report = verify(request, spark, commit_while_checking)
    assert report.verdict is Verdict.COMPLETE
    assert report.head == HEAD
    assert "were committed since" in report.sources[1].notes[0]


async def _commit_one(dsn: str, row: Row) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await _commit(connection, [row])
    finally:
        await connection.close()


def test_database_that_breaks_off_behind_its_head_is_no_verdict(
    spark: SparkSession, audit: DatabaseSource, execute: Callable[..., None]
) -> None:
    def break_off(line: str) -> None:
        if line == "checking database":
            execute("ALTER TABLE chain_page RENAME TO gone")

    request = VerifyRequest(chain_id=CHAIN_ID, sources=(audit,))
    with pytest.raises(SourceBroken, match="database: could not be read to its end"):
        verify(request, spark, break_off)


def test_database_read_over_several_connections_is_the_same(
    spark: SparkSession, verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chain_verifier.spark.database._ROWS_A_CONNECTION", 100)
    report = verified()
    assert report.verdict is Verdict.COMPLETE
    assert report.sources[0].rows == len(ROWS)


async def _rule(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        found: str = await connection.fetchval(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conrelid = 'chain_page'::regclass AND conname = 'chain_page_no_null'"
        )
        return found
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "is_forbidden_anew", [pytest.param(False, marks=pytest.mark.nightly), True]
)
def test_database_that_once_let_nulls_in_names_them(
    verified: Verified, execute: Callable[..., None], database: str, is_forbidden_anew: bool
) -> None:
    """A constraint that was never validated says nothing of the rows that were there before."""
    rule = asyncio.run(_rule(database))
    execute(
        "ALTER TABLE chain_page DROP CONSTRAINT chain_page_no_null",
        f"UPDATE chain_event SET payload = NULL WHERE id = {ROWS[7].id}",  # noqa: S608
    )
    if is_forbidden_anew:
        execute(f"ALTER TABLE chain_page ADD CONSTRAINT chain_page_no_null {rule} NOT VALID")
    expected = Finding(
        kind=Kind.NULL, source="database", id=ROWS[7].id, pid=ROWS[7].pid, columns=("payload",)
    )
    assert verified().findings == (expected,)


def test_database_that_forbids_nulls_is_not_asked_for_them(
    spark: SparkSession, audit: DatabaseSource
) -> None:
    rows = DatabaseTable(spark, audit, CHAIN_ID).rows
    plan: Any = rows.agg(F.count_if(HAS_NULL), F.sum("id"))
    shown = plan._jdf.queryExecution().executedPlan().toString()
    assert shown.rpartition("ReadSchema: ")[2].strip() == "struct<id:bigint>", shown
    assert plan.collect()[0][0] == 0


def test_database_with_another_chain_is_missing(spark: SparkSession, audit: DatabaseSource) -> None:
    with pytest.raises(ChainMissing):
        verify(VerifyRequest(chain_id=CHAIN_ID + 1, sources=(audit,)), spark)


def test_database_without_our_schema_is_refused(
    spark: SparkSession, database: str, execute: Callable[..., None],
    role_dsn: Callable[[str], str],
) -> None:  # fmt: skip
    request = VerifyRequest(
        chain_id=CHAIN_ID, sources=(DatabaseSource(database=role_dsn(AUDITOR)),)
    )
    execute("UPDATE schema_version SET version = 99")
    with pytest.raises(SchemaError, match="99"):
        verify(request, spark)
    execute("DROP TABLE schema_version")
    with pytest.raises(SchemaError, match="missing"):
        verify(request, spark)


def test_database_with_a_role_that_may_not_read_is_refused(
    spark: SparkSession, stored: str, execute: Callable[..., None],
    role_dsn: Callable[[str], str],
) -> None:  # fmt: skip
    execute(f"REVOKE SELECT ON chain_page FROM {GAP_READER}")  # noqa: S608
    source = DatabaseSource(database=role_dsn(GAP_READER))
    with pytest.raises(
        ConnectError, match=r"member of auditor \(login gap_reader: .*permission denied"
    ):
        verify(VerifyRequest(chain_id=CHAIN_ID, sources=(source,)), spark)


def test_database_with_a_wrong_password_is_refused_without_showing_it(
    spark: SparkSession, audit: DatabaseSource
) -> None:
    assert isinstance(audit.database, str)
    parts = urlsplit(audit.database)
    dsn = audit.database.replace(str(parts.password), "sesame")
    with pytest.raises(ConnectError, match="password authentication failed") as refused:
        verify(VerifyRequest(chain_id=CHAIN_ID, sources=(DatabaseSource(database=dsn),)), spark)
    assert "sesame" not in str(refused.value)


def test_database_at_a_closed_port_is_refused(spark: SparkSession) -> None:
    source = DatabaseSource(database="postgresql://auditor:sesame@127.0.0.1:1/x")
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1.*refused") as refused:
        verify(VerifyRequest(chain_id=CHAIN_ID, sources=(source,)), spark)
    assert "sesame" not in str(refused.value)


def test_verify_with_a_source_given_twice_is_refused(audit: DatabaseSource) -> None:
    with pytest.raises(SettingError, match="each source once"):
        verify(VerifyRequest(chain_id=CHAIN_ID, sources=(audit, audit)))
