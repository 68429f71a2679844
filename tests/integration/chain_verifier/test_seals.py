"""Seals recomputed from rows in a real PostgreSQL: what was changed later is found, and where."""

# ruff: noqa: S608 - every value in a statement is a number of this file

import asyncio
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from chain_kernel.errors import SettingError
from chain_kernel.sql import AUDITOR
from chain_verifier.checks.neighbours import gathered
from chain_verifier.config import (
    ContradictedMark,
    DatabaseSource,
    JournalSource,
    KeptSeal,
    VerifyRequest,
)
from chain_verifier.findings import Finding, Kind
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Report
from chain_verifier.spark.finding_frame import write_findings
from chain_verifier.spark.verify import verify
from tests.opened import connected
from tests.stored_pages import LET_TAMPER, execute

from .agreement import verified_by_both
from .planted_faults import CHAIN_ID, Row, chain_of, head_of
from .stored_rows import batches_of, seal_of, store

Verified = Callable[..., Report]
Execute = Callable[..., object]

ROWS = chain_of(random.Random(17), 60)
HEAD = head_of(ROWS)


@pytest.fixture
def verified(spark: SparkSession, database: str, role_dsn: Callable[[str], str]) -> Verified:
    """Stores a chain of six batches, and verifies it with its seals, by both modes."""
    asyncio.run(store(database, ROWS))

    def run(**options: Any) -> Report:
        source = DatabaseSource(database=role_dsn(AUDITOR))
        request = VerifyRequest(
            chain_id=CHAIN_ID,
            sources=(source,),
            bucket_bits=5,
            leaf_bits=5,
            **({"seals": True} | options),
        )
        return verified_by_both(request, spark)

    return run


@pytest.fixture
def change(database: str) -> Execute:
    return lambda *statements: asyncio.run(execute(database, *statements))


def finding(kind: Kind, **fields: Any) -> Finding:
    return Finding(kind=kind, source="database", **fields)


def batch(number: int) -> list[Row]:
    """The rows of a batch; of the first ones these are ten."""
    return batches_of(ROWS)[number]


def ends(number: int) -> dict[str, int | None]:
    return {"id": batch(number)[0].id, "until_id": batch(number)[-1].id}


@pytest.mark.merge
@pytest.mark.guarantee("G13")
def test_seals_with_one_column_of_a_row_changed_name_its_batch(
    verified: Verified, change: Execute
) -> None:
    assignments = (
        "payload = payload || '\\x00'", "key = key || ' '", "event_time_ns = event_time_ns + 1",
    )  # fmt: skip
    for number, assignment in enumerate(assignments):
        row_id = batch(number)[5].id
        change(f"UPDATE chain_event SET {assignment} WHERE id = {row_id}")
    assert verified(seals=False).is_clean
    span = {"id": batch(0)[0].id, "until_id": batch(2)[-1].id}
    report = verified()
    assert report.findings == (finding(Kind.SEAL_MISMATCH, **span, batches=3),)
    assert (report.counts, report.row_counts) == ({"seal_mismatch": 1}, {"seal_mismatch": 3})


@pytest.mark.merge
@pytest.mark.parametrize("archived", [0, 1], ids=["of the chain", "after the archive"])
def test_damaged_first_batch_is_one_finding(
    spark: SparkSession,
    database: str,
    role_dsn: Callable[[str], str],
    change: Execute,
    archived: int,
) -> None:
    """In a chain so short that each task of Spark has one batch."""
    asyncio.run(store(database, ROWS[:30]))
    boundary = ends(archived - 1)["until_id"] if archived else 0
    if archived:
        change(
            f"DELETE FROM chain_page WHERE last_id <= {boundary}",
            "UPDATE chain_batch SET prev_last_id = NULL, first_id = last_id, row_count = 0 "
            f"WHERE last_id = {boundary}",
            f"DELETE FROM chain_batch WHERE last_id < {boundary}",
        )
    change(f"UPDATE chain_event SET payload = 'other' WHERE id = {batch(archived)[5].id}")
    source = DatabaseSource(database=role_dsn(AUDITOR))
    request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,), start=boundary or 0, seals=True)
    found = (finding(Kind.SEAL_MISMATCH, **ends(archived)),)
    assert verified_by_both(request, spark).findings == found


def entry(number: int, change: str) -> str:
    return f"UPDATE chain_batch SET {change} WHERE last_id = {batch(number)[-1].id}"


def event(row: Row, change: str) -> str:
    return f"UPDATE chain_event SET {change} WHERE id = {row.id}"


def mismatches(*numbers: int) -> set[Finding]:
    return {finding(Kind.SEAL_MISMATCH, **ends(number)) for number in numbers}


TAKEN, MOVED = batch(1)[5].id, (batch(3)[-1].id or 0) - 1
CUT = finding(Kind.BATCH_COUNT, **ends(1), count=9, expected_count=10)
WIPED = {"id": batch(2)[0].id, "until_id": batch(4)[-1].id}
LOST = sum(len(batch(number)) for number in (2, 3, 4))
NO_GENESIS = finding(Kind.SEAL_MISMATCH, id=0, until_id=0)
OTHER_SEAL = "seal = sha256(seal)"

HARMS: dict[str, tuple[list[str], set[Finding]]] = {
    "nothing": ([], set()),
    # One batch loses a single row; the three after it lose all.
    "batches wiped": (
        [
            f"DELETE FROM chain_event WHERE id = {TAKEN}",
            f"DELETE FROM chain_page WHERE first_id >= {batch(2)[0].id} "
            f"AND last_id <= {batch(4)[-1].id}",
        ],
        {CUT, finding(Kind.BATCH_COUNT, **WIPED, batches=3, count=0, expected_count=LOST)},
    ),
    # The batch after the moved row then begins after another one than it says.
    "rows taken out, or under another id": (
        [
            f"DELETE FROM chain_event WHERE id = {TAKEN}",
            event(batch(1)[6], f"pid = {batch(1)[4].id}"),
            event(batch(3)[-1], f"id = {MOVED}"),
            event(batch(4)[0], f"pid = {MOVED}"),
        ],
        {
            CUT,
            finding(Kind.BATCH_RANGE, **ends(3), ids=(batch(3)[0].id, MOVED), pid=batch(2)[-1].id),
            finding(Kind.BATCH_RANGE, **ends(4), ids=tuple(ends(4).values()), pid=MOVED),
        },
    ),
    "the lines of batches": (
        [
            entry(0, "committed_at = now()"), entry(2, "epoch = 0"), entry(-1, "epoch = epoch + 1"),
            "UPDATE chain_head SET last_seal = decode(repeat('00', 32), 'hex')",
            "UPDATE schema_version SET database_id = gen_random_uuid()",
        ],
        {
            NO_GENESIS,
            *mismatches(0, 2, -1),
            finding(Kind.WRONG_EPOCH, **ends(2), epoch=0, expected_epoch=1),
            finding(Kind.HEAD_SEAL, id=HEAD, until_id=HEAD),
        },
    ),
    "another number of rows": (
        [entry(3, "row_count = row_count + 1")],
        {finding(Kind.BATCH_COUNT, **ends(3), count=10, expected_count=11)},
    ),
    "times that no commit has": (
        [entry(n, f"committed_at = '{time}'") for n, time in
         ((0, "infinity"), (2, "-infinity"), (4, "290000-01-01"))],
        mismatches(0, 2, 4),
    ),
    # The batch after it, the seal of the head and one that was kept say no more than that.
    "stored seals": ([entry(n, OTHER_SEAL) for n in (0, 2, 4)], mismatches(0, 2, 4)),
    "other stored seals": ([entry(n, OTHER_SEAL) for n in (1, 3, 5)], mismatches(1, 3, 5)),
    "the seal of the genesis": (
        [f"UPDATE chain_batch SET {OTHER_SEAL} WHERE last_id = 0"], {NO_GENESIS},
    ),
}  # fmt: skip
OF_SEALS = {
    Kind.SEAL_MISMATCH, Kind.BATCH_COUNT, Kind.BATCH_RANGE, Kind.WRONG_EPOCH, Kind.HEAD_SEAL,
    Kind.KEPT_SEAL,
}  # fmt: skip


@pytest.mark.parametrize("name", HARMS)
def test_seals_name_what_was_changed_and_nothing_else(
    verified: Verified, change: Execute, database: str, name: str
) -> None:
    kept = KeptSeal(id=HEAD, seal=asyncio.run(_head_seal(database)))
    statements, expected = HARMS[name]
    change("SELECT 1", *statements)
    report = verified(kept_seals=(kept,))
    found = [one for one in report.findings if one.kind in OF_SEALS]
    assert (set(found), len(found)) == (expected, len(expected))
    assert report.is_clean is not bool(expected)


def test_contradicted_mark_is_reported_beside_what_the_seals_say_and_is_written_with_it(
    verified: Verified, change: Execute, spark: SparkSession, tmp_path: Path
) -> None:
    """Seals are recomputed without being asked for: the mark says that something has changed."""
    change(f"UPDATE chain_event SET key = 'x' WHERE id = {batch(2)[5].id}")
    mark = ContradictedMark(
        mark_id=3, after_id=5, until_id=HEAD, seal=b"s" * 32, found=None, verified_by="eve",
        verified_at=datetime(2026, 1, 2, tzinfo=UTC), count=2,
    )  # fmt: skip
    report = verified(seals=False, contradicted_mark=mark)
    shown = finding(
        Kind.CONTRADICTED_MARK, after_id=5, until_id=HEAD, count=2, expected_seal=(b"s" * 32).hex(),
        mark_id=3, verified_by="eve", verified_at="2026-01-02T00:00:00+00:00",
    )  # fmt: skip
    assert set(report.findings) == {finding(Kind.SEAL_MISMATCH, **ends(2)), shown}
    assert "no batch ends there" in shown.text
    write_findings(spark, CHAIN_ID, gathered([shown]), str(tmp_path))
    parts = (tmp_path / "findings.json").glob("*.json")
    (written,) = (json.loads(line) for part in parts for line in part.read_text().splitlines())
    assert (written["mark_id"], written["verified_by"]) == (3, "eve")


@pytest.mark.merge
def test_kept_seal_with_a_rewritten_tail_is_found_though_all_else_fits(
    verified: Verified, database: str
) -> None:
    kept = KeptSeal(id=HEAD, seal=asyncio.run(_head_seal(database)))
    assert verified(kept_seals=(kept,)).is_clean
    asyncio.run(_rewrite(database, len(batches_of(ROWS)) - 1))
    assert verified().is_clean
    assert verified(kept_seals=(kept,)).findings == (
        finding(Kind.KEPT_SEAL, id=HEAD, until_id=HEAD),
    )
    of_none = KeptSeal(id=(ROWS[29].id or 0) + 1, seal=bytes(32))
    assert verified(kept_seals=(of_none,)).counts == {"kept_seal": 1}


def test_report_names_the_last_exported_seal_that_fits_and_the_first_that_does_not(
    verified: Verified, database: str
) -> None:
    """So an auditor knows from which row on, and after which export, history was changed."""
    before = asyncio.run(_exports(database))
    last = verified(kept_seals=before).exported_seals
    assert last is not None
    assert (last.count, last.first_misfit) == (len(before), None)
    times = f"committed {before[-1].committed_at}, exported {before[-1].exported_at}"
    assert str(last).endswith(f" fit; the last one is of row {HEAD} ({times})")

    asyncio.run(_rewrite(database, 2))
    # As it is kept in a folder: later exports have the new history, and are held first.
    kept = [*asyncio.run(_exports(database))[-1:], *reversed(before[:-1])]
    report = verified(kept_seals=kept)
    assert report.counts == {"kept_seal": len(before) - 3}
    found = report.exported_seals
    assert found is not None
    assert found.last_fitting is not None
    assert found.first_misfit is not None
    assert (found.last_fitting.id, found.last_fitting.exported_at) == (before[1].id, "2026-02-01")
    assert (found.first_misfit.id, found.first_misfit.committed_at) == (before[2].id, "2026-01-02")
    assert f"  {found}" in report.lines()
    assert str(found) == (
        f"exported seals: row {before[1].id} (committed 2026-01-01, exported 2026-02-01) is the "
        f"last that fits, row {before[2].id} (committed 2026-01-02, exported 2026-02-02) the first "
        "that does not: rows between them were changed or removed after that export"
    )
    none = verified(kept_seals=before[2:3]).exported_seals
    assert none is not None
    assert str(none).startswith(f"exported seals: none before row {before[2].id} (committed ")
    assert str(none).endswith("), which does not fit: rows up to it were changed or removed")
    one = verified(kept_seals=before[:1]).exported_seals
    assert str(one).startswith("1 exported seal fits; the last one is of row ")


def test_seals_without_the_database_are_refused(spark: SparkSession) -> None:
    request = VerifyRequest(chain_id=1, sources=(JournalSource(path="x"),), seals=True)
    with pytest.raises(SettingError, match="whose seals"):
        verify(request, spark)
    with pytest.raises(SettingError, match="whose seals"):
        verify_locally(request)


async def _head_seal(dsn: str) -> bytes:
    ((seal,),) = await execute(dsn, "SELECT last_seal FROM chain_head")
    return bytes(seal)


async def _rewrite(dsn: str, first: int) -> None:
    """Change a row of a batch, and every seal from there on: only the tables' owner can do that."""
    async with connected(dsn) as connection:
        stored = await connection.fetch("SELECT * FROM chain_batch ORDER BY last_id")
        seal, number = stored[first]["seal"], first  # the genesis is before the first batch
        await connection.execute(LET_TAMPER)
        for entry, rows in zip(stored[first + 1 :], batches_of(ROWS)[first:], strict=True):
            changed = [replace(rows[0], payload=b"changed"), *rows[1:]] if number == first else rows
            number += 1
            seal = seal_of(changed, seal, entry["epoch"], entry["committed_at"])
            await connection.execute(
                "UPDATE chain_event SET payload = $1 WHERE id = $2", changed[0].payload, rows[0].id
            )
            await connection.execute(
                "UPDATE chain_batch SET seal = $1 WHERE last_id = $2", seal, entry["last_id"]
            )
        await connection.execute("UPDATE chain_head SET last_seal = $1", seal)


async def _exports(dsn: str) -> list[KeptSeal]:
    """The seal of each batch, as if each had been exported when it was committed."""
    query = "SELECT last_id, seal FROM chain_batch WHERE last_id > 0 ORDER BY last_id"
    return [
        KeptSeal(
            id=last_id, seal=seal, committed_at=f"2026-01-0{number}",
            exported_at=f"2026-02-0{number}",
        )
        for number, (last_id, seal) in enumerate(await execute(dsn, query))
    ]  # fmt: skip
