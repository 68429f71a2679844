"""Seals recomputed from rows in a real PostgreSQL: what was changed later is found, and where."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

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
from chain_verifier.spark.finding_frame import write_findings
from chain_verifier.spark.verify import verify
from tests.integration.chain_verifier.agreement import verified_by_both
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row, chain_of, head_of
from tests.integration.chain_verifier.stored_rows import batches_of, execute, seal_of, store
from tests.stored_pages import LET_TAMPER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from chain_verifier.report import Report

    Verified = Callable[..., Report]
    Execute = Callable[..., None]

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


def test_seals_with_a_clean_chain_have_no_findings(verified: Verified) -> None:
    assert verified().findings == ()


def batch(number: int) -> list[Row]:
    """The rows of a batch; of the first ones these are ten."""
    return batches_of(ROWS)[number]


def ends(number: int) -> dict[str, int | None]:
    return {"id": batch(number)[0].id, "until_id": batch(number)[-1].id}


@pytest.mark.merge
@pytest.mark.invariant("S13")
def test_seals_with_one_column_of_a_row_changed_name_its_batch(
    verified: Verified, change: Execute
) -> None:
    assignments = (
        "payload = payload || '\\x00'", "key = key || ' '", "event_time_ns = event_time_ns + 1",
    )  # fmt: skip
    for number, assignment in enumerate(assignments):
        row_id = batch(number)[5].id
        change(f"UPDATE chain_event SET {assignment} WHERE id = {row_id}")  # noqa: S608 - numbers
    assert verified(seals=False).is_clean
    span = {"id": batch(0)[0].id, "until_id": batch(2)[-1].id}
    report = verified()
    assert report.findings == (finding(Kind.SEAL_MISMATCH, **span, batches=3),)
    assert (report.counts, report.row_counts) == ({"seal_mismatch": 1}, {"seal_mismatch": 3})


def test_seals_with_batches_that_were_wiped_name_them_as_one(
    verified: Verified, change: Execute
) -> None:
    """One batch loses a single row; the three after it lose all."""
    change(
        f"DELETE FROM chain_event WHERE id = {batch(1)[5].id}",  # noqa: S608 - numbers
        f"DELETE FROM chain_page WHERE first_id >= {batch(2)[0].id} "  # noqa: S608
        f"AND last_id <= {batch(4)[-1].id}",
        "SELECT 1",
    )
    report = verified()
    span = {"id": batch(2)[0].id, "until_id": batch(4)[-1].id}
    lost = sum(len(batch(number)) for number in (2, 3, 4))
    assert {one for one in report.findings if one.kind is Kind.BATCH_COUNT} == {
        finding(Kind.BATCH_COUNT, **ends(1), count=9, expected_count=10),
        finding(Kind.BATCH_COUNT, **span, batches=3, count=0, expected_count=lost),
    }
    assert (report.counts["batch_count"], report.row_counts["batch_count"]) == (2, 4)


def test_seals_with_rows_taken_out_or_under_another_id_name_their_batches(
    verified: Verified, change: Execute
) -> None:
    taken, moved = batch(1)[5].id, (batch(3)[-1].id or 0) - 1
    change(
        f"DELETE FROM chain_event WHERE id = {taken}",  # noqa: S608 - numbers
        f"UPDATE chain_event SET pid = {batch(1)[4].id} WHERE id = {batch(1)[6].id}",  # noqa: S608
        f"UPDATE chain_event SET id = {moved} WHERE id = {batch(3)[-1].id}",  # noqa: S608
        f"UPDATE chain_event SET pid = {moved} WHERE id = {batch(4)[0].id}",  # noqa: S608
    )
    found = verified().findings
    counted = finding(Kind.BATCH_COUNT, **ends(1), count=9, expected_count=10)
    first_id, before = batch(3)[0].id, batch(2)[-1].id
    ranged = finding(Kind.BATCH_RANGE, **ends(3), ids=(first_id, moved), pid=before)
    assert {counted, ranged} <= set(found)
    # The batch behind the moved row now begins behind another one than it says.
    (behind,) = {one.id for one in found if one.kind is Kind.BATCH_RANGE} - {first_id}
    assert behind == batch(4)[0].id
    assert {one.kind for one in found} == {Kind.BATCH_COUNT, Kind.BATCH_RANGE, Kind.ROW_COUNT}


def test_seals_with_the_lines_of_batches_changed_name_each(
    verified: Verified, change: Execute
) -> None:
    change(
        f"UPDATE chain_batch SET committed_at = now() WHERE last_id = {batch(0)[-1].id}",  # noqa: S608
        f"UPDATE chain_batch SET epoch = 0 WHERE last_id = {batch(2)[-1].id}",  # noqa: S608
        f"UPDATE chain_batch SET epoch = epoch + 1 WHERE last_id = {batch(-1)[-1].id}",  # noqa: S608
        "UPDATE chain_head SET last_seal = decode(repeat('00', 32), 'hex')",
        "UPDATE schema_version SET database_id = gen_random_uuid()",
    )
    expected = {
        finding(Kind.SEAL_MISMATCH, id=0, until_id=0),
        *(finding(Kind.SEAL_MISMATCH, **ends(number)) for number in (0, 2, -1)),
        finding(Kind.WRONG_EPOCH, **ends(2), epoch=0, expected_epoch=1),
        finding(Kind.HEAD_SEAL, id=HEAD, until_id=HEAD),
    }
    found = verified().findings
    assert (set(found), len(found)) == (expected, len(expected))


@pytest.mark.parametrize("numbers", [(0, 2, 4), (1, 3, 5)])
def test_seals_with_stored_seals_wrong_are_one_finding_each(
    verified: Verified, change: Execute, database: str, numbers: Sequence[int]
) -> None:
    """The batch behind it, the seal of the head and one that was kept say no more than that."""
    kept = KeptSeal(id=HEAD, seal=asyncio.run(_head_seal(database)))
    wrong = ", ".join(str(batch(number)[-1].id) for number in numbers)
    change(f"UPDATE chain_batch SET seal = sha256(seal) WHERE last_id IN ({wrong})")  # noqa: S608
    expected = {finding(Kind.SEAL_MISMATCH, **ends(number)) for number in numbers}
    report = verified(kept_seals=(kept,))
    assert (set(report.findings), report.counts) == (expected, {"seal_mismatch": len(expected)})


def test_seals_with_the_seal_of_the_genesis_wrong_are_one_finding(
    verified: Verified, change: Execute
) -> None:
    change("UPDATE chain_batch SET seal = sha256(seal) WHERE last_id = 0")
    assert verified().findings == (finding(Kind.SEAL_MISMATCH, id=0, until_id=0),)


def test_contradicted_mark_is_reported_beside_what_the_seals_say_and_is_written_with_it(
    verified: Verified, change: Execute, spark: SparkSession, tmp_path: Path
) -> None:
    """Seals are recomputed without being asked for: the mark says that something has changed."""
    change(f"UPDATE chain_event SET key = 'x' WHERE id = {batch(2)[5].id}")  # noqa: S608 - a number
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
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        seal: bytes = await connection.fetchval("SELECT last_seal FROM chain_head")
        return seal
    finally:
        await connection.close()


async def _rewrite(dsn: str, first: int) -> None:
    """Change a row of a batch, and every seal from there on: only the tables' owner can do that."""
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
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
    finally:
        await connection.close()


async def _exports(dsn: str) -> list[KeptSeal]:
    """The seal of each batch, as if each had been exported when it was committed."""
    import asyncpg

    connection = await asyncpg.connect(dsn, timeout=10, command_timeout=20)
    try:
        return [
            KeptSeal(
                id=entry["last_id"], seal=entry["seal"], committed_at=f"2026-01-0{number}",
                exported_at=f"2026-02-0{number}",
            )
            for number, entry in enumerate(
                await connection.fetch(
                    "SELECT * FROM chain_batch WHERE last_id > 0 ORDER BY last_id"
                )
            )
        ]  # fmt: skip
    finally:
        await connection.close()
