"""Many chains of one database in one job: each as if it were verified alone."""

# ruff: noqa: S608 - every value in a statement is a number or a name of this file

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from chain_kernel.seal import Batch
from chain_kernel.sql import AUDITOR
from chain_verifier.config import DatabaseSource, VerifyRequest
from chain_verifier.findings import Kind
from chain_verifier.report import ChainsReport, Report, Unverified, Verdict
from chain_verifier.spark.database import DatabaseTable
from chain_verifier.spark.verify import verify, verify_chains
from tests.builders.stored_chain import StoredChain
from tests.opened import connected
from tests.stored_pages import LET_LACK_VALUES, execute

Harm = Callable[[Batch], tuple[str, ...]]

BATCHES: Final = 4
BATCH_ROWS: Final = 20
"""Two pages and some rows."""


def on_row(change: str, place: int = 5) -> Harm:
    """Change a row within a batch."""
    return lambda batch: (
        f"UPDATE chain_event SET {change.format(id=batch.events[place].id, pid=batch.pid)} "
        f"WHERE chain_id = {batch.chain_id} AND id = {batch.events[place].id}",
    )


def on_batch(change: str) -> Harm:
    return lambda batch: (
        f"UPDATE chain_batch SET {change} "
        f"WHERE chain_id = {batch.chain_id} AND last_id = {batch.last_id}",
    )


def on_page(change: str) -> Harm:
    return lambda batch: (
        f"UPDATE chain_page SET {change} "
        f"WHERE chain_id = {batch.chain_id} AND first_id = {batch.first_id}",
    )


def inserted(values: str) -> Harm:
    return lambda batch: (
        f"INSERT INTO chain_event SELECT {batch.chain_id}, id, pid, 'k', 0, '' FROM (VALUES ("
        + values.format(id=batch.events[5].id, pid=batch.events[5].pid)
        + ")) AS row (id, pid)",
    )


def removed(batch: Batch) -> tuple[str, ...]:
    row = batch.events[5]
    return (f"DELETE FROM chain_event WHERE chain_id = {batch.chain_id} AND id = {row.id}",)


def removed_with_its_link(batch: Batch) -> tuple[str, ...]:
    """Leave a whole path, one row short."""
    row, after = batch.events[5:7]
    return (
        *removed(batch),
        f"UPDATE chain_event SET pid = {row.pid} "
        f"WHERE chain_id = {batch.chain_id} AND id = {after.id}",
    )


def naming_no_row(batch: Batch) -> tuple[str, ...]:
    """Let a row name an id that was skipped earlier."""
    rows = zip(batch.events, batch.events[1:], batch.events[2:], strict=False)
    before, row = next((a, c) for a, b, c in rows if b.id > a.id + 1)
    return (
        f"UPDATE chain_event SET pid = {before.id + 1} "
        f"WHERE chain_id = {batch.chain_id} AND id = {row.id}",
    )


HARMS: Final[dict[Kind, Harm]] = {
    Kind.GAP: removed,
    Kind.ROW_COUNT: removed_with_its_link,
    Kind.FORK: on_row("pid = {pid}"),
    Kind.PID_NOT_BELOW_ID: on_row("pid = {id}"),
    Kind.SECOND_ROOT: on_row("pid = 0"),
    Kind.ORPHAN: naming_no_row,
    Kind.BEYOND_HEAD: inserted("1000000, {id}"),
    Kind.DUPLICATE: inserted("{id}, {pid}"),
    Kind.NULL: on_page("keys[2] = NULL"),
    Kind.WRONG_PAGE: on_page("payloads = payloads[:3]"),
    Kind.OUT_OF_ORDER: on_page(
        "ids = ids[2:2] || ids[1:1] || ids[3:], pids = pids[2:2] || pids[1:1] || pids[3:]"
    ),
    Kind.SEAL_MISMATCH: on_row("payload = 'other'"),
    Kind.BATCH_COUNT: on_batch("row_count = 7"),
    Kind.BATCH_RANGE: on_batch("first_id = first_id + 1"),
    Kind.WRONG_EPOCH: on_batch("epoch = 0"),
    Kind.HEAD_SEAL: lambda batch: (
        f"UPDATE chain_head SET last_seal = sha256('') WHERE chain_id = {batch.chain_id}",
    ),
    Kind.REPEATED_KEY: lambda batch: on_row(f"key = '{batch.events[0].key}'")(batch),
}
"""What the database alone shows; chains differ in number in this order."""
SAMPLE: Final = (Kind.GAP, Kind.ROW_COUNT, Kind.SEAL_MISMATCH, Kind.HEAD_SEAL)

WHOLE, EMPTY, ARCHIVED, SHORTENED = 1, 2, 3, 4
FIRST_HARMED: Final = 11


@pytest.fixture
def source(database: str, role_dsn: Callable[[str], str]) -> DatabaseSource:
    return DatabaseSource(database=role_dsn(AUDITOR))


async def store(dsn: str, kinds: Iterable[Kind]) -> dict[int, Kind]:
    """Store whole chains, an archived one that lacks a row, and one for each kind, harmed.

    Return what is wrong with which.
    """
    harmed: dict[int, Kind] = {}
    statements = [LET_LACK_VALUES]
    async with connected(dsn) as connection:
        await StoredChain.create(connection, EMPTY)
        whole = await StoredChain.create(connection, WHOLE)
        archived = await StoredChain.create(connection, ARCHIVED)
        shortened = await StoredChain.create(connection, SHORTENED)
        for stored in (whole, archived, shortened):
            batches = [await stored.commit(BATCH_ROWS) for _ in range(BATCHES)]
            if stored is not whole:
                await stored.archive_up_to(batches[0])
        statements += removed_with_its_link(batches[2])
        harmed[SHORTENED] = Kind.ROW_COUNT
        for number, kind in enumerate(kinds, FIRST_HARMED):
            stored = await StoredChain.create(connection, number, seed=number)
            batches = [await stored.commit(BATCH_ROWS) for _ in range(BATCHES)]
            statements += HARMS[kind](batches[2])
            harmed[number] = kind
    await execute(dsn, *statements)
    return harmed


def requests_of(source: DatabaseSource, chains: Iterable[int]) -> list[VerifyRequest]:
    return [
        VerifyRequest(chain_id=number, sources=(source,), seals=True, key_window_rows=1_000_000)
        for number in chains
    ]


def without_times(report: Report) -> Report:
    sources = tuple(replace(one, seconds=0) for one in report.sources)
    return replace(report, sources=sources, seconds=0, spark_start_seconds=0)


def reports_of(found: ChainsReport) -> dict[int, Report]:
    reports = {one.chain_id: one for one in found.outcomes if isinstance(one, Report)}
    assert len(reports) == len(found.outcomes), found.unverified
    return reports


BOUNDARIES: Final = (
    "SELECT chain_id, max(last_id) FROM chain_batch WHERE prev_last_id IS NULL GROUP BY chain_id"
)


def require_as_alone(
    spark: SparkSession, source: DatabaseSource, database: str, kinds: Iterable[Kind]
) -> None:
    harmed = asyncio.run(store(database, kinds))
    starts = dict(asyncio.run(execute(database, BOUNDARIES)))
    requests = [
        replace(one, start=starts[one.chain_id])
        for one in requests_of(source, [WHOLE, EMPTY, ARCHIVED, *harmed])
    ]
    steps: list[str] = []
    reports = reports_of(verify_chains(requests, spark, steps.append))
    for request in requests:
        number = request.chain_id
        report = without_times(reports[number])
        assert report == without_times(verify(request, spark)), number
        if number in harmed:
            assert harmed[number] in {one.kind for one in report.findings}, (number, report)
        else:
            assert report.verdict is Verdict.COMPLETE, report
    # A look at one chain alone is a step, and only rows that are no path need one.
    alone = {int(step.split()[1]) for step in steps if step.startswith("chain ")}
    assert alone <= harmed.keys()


def test_damaged_chains_among_whole_ones_are_reported_as_alone(
    spark: SparkSession, source: DatabaseSource, database: str
) -> None:
    require_as_alone(spark, source, database, SAMPLE)


@pytest.mark.nightly
def test_every_damage_among_whole_chains_is_reported_as_alone(
    spark: SparkSession, source: DatabaseSource, database: str
) -> None:
    require_as_alone(spark, source, database, HARMS)


def test_whole_chains_take_one_look_each_for_rows_and_seals_and_keys(
    spark: SparkSession, source: DatabaseSource, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(store(database, ()))

    def look_alone(*_: Any) -> None:
        pytest.fail("a whole chain was looked at alone")

    for name in ("source_check.examine", "check_seals", "repeated_keys"):
        monkeypatch.setattr(f"chain_verifier.spark.verify.{name}", look_alone)
    monkeypatch.setattr(DatabaseTable, "_read_head", look_alone)
    reports = reports_of(verify_chains(requests_of(source, [WHOLE, EMPTY]), spark))
    found = {number: (one.verdict, one.sources[0].rows) for number, one in reports.items()}
    rows = BATCHES * BATCH_ROWS
    assert found == {WHOLE: (Verdict.COMPLETE, rows), EMPTY: (Verdict.COMPLETE, 0)}
    assert (reports[WHOLE].seals_checked, reports[WHOLE].keys_compared) == (True, True)


def test_chain_that_is_missing_and_a_server_that_is_away_stop_no_others(
    spark: SparkSession, source: DatabaseSource, database: str
) -> None:
    asyncio.run(store(database, ()))
    away = DatabaseSource(database="postgresql://auditor:sesame@127.0.0.1:1/x")
    requests = [*requests_of(source, [WHOLE, 99, EMPTY]), *requests_of(away, [4, 5])]
    whole, missing, empty, *unreachable = verify_chains(requests, spark).outcomes
    assert isinstance(whole, Report)
    assert isinstance(empty, Report)
    assert (whole.is_clean, empty.is_clean) == (True, True)
    assert isinstance(missing, Unverified)
    assert "99" in missing.reason
    for one in unreachable:
        assert isinstance(one, Unverified)
        assert one.is_refused
        assert "127.0.0.1" in one.reason
        assert "sesame" not in one.reason
