"""Seals recomputed from rows in a real PostgreSQL: what was changed later is found, and where."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from chain_verifier.config import DatabaseSource, JournalSource, KeptSeal, VerifyRequest
from chain_verifier.findings import Finding, Kind
from chain_verifier.verify import verify
from orderchain.errors import SettingError
from orderchain.roles import AUDITOR
from orderchain.row_image import column_images
from orderchain.seal import next_seal
from tests.spark.planting import CHAIN_ID, chain_of, head_of
from tests.spark.storing import execute, store

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from chain_verifier.report import Report

    Verified = Callable[..., Report]
    Execute = Callable[..., None]

ROWS = chain_of(random.Random(17), 60)
HEAD = head_of(ROWS)
FIRST, LAST = ROWS[20].id, ROWS[29].id
"""The ends of the third batch, which the tests damage."""


@pytest.fixture
def verified(spark: SparkSession, database: str, role_dsn: Callable[[str], str]) -> Verified:
    """Stores a chain of six batches, and verifies it with its seals."""
    asyncio.run(store(database, ROWS))

    def run(**options: Any) -> Report:
        source = DatabaseSource(dsn=role_dsn(AUDITOR))
        request = VerifyRequest(
            chain_id=CHAIN_ID,
            sources=(source,),
            bucket_bits=5,
            leaf_bits=5,
            **({"seals": True} | options),
        )
        return verify(request, spark)

    return run


@pytest.fixture
def change(database: str) -> Execute:
    return lambda *statements: asyncio.run(execute(database, *statements))


def finding(kind: Kind, **fields: Any) -> Finding:
    return Finding(kind=kind, source="database", **fields)


def test_seals_with_a_clean_chain_have_no_findings(verified: Verified) -> None:
    assert verified().findings == ()


@pytest.mark.parametrize(
    "assignment",
    ["payload = payload || '\\x00'", "key = key || ' '", "event_time_ns = event_time_ns + 1"],
)
def test_seals_with_a_row_changed_name_its_batch(
    verified: Verified, change: Execute, assignment: str
) -> None:
    change(f"UPDATE chain_event SET {assignment} WHERE id = {ROWS[25].id}")  # noqa: S608 - numbers
    assert verified(seals=False).is_clean
    assert verified().findings == (finding(Kind.SEAL_MISMATCH, id=FIRST, until_id=LAST),)


def test_seals_with_a_row_taken_out_and_its_link_mended_name_its_batch(
    verified: Verified, change: Execute
) -> None:
    change(
        f"DELETE FROM chain_event WHERE id = {ROWS[25].id}",  # noqa: S608 - numbers
        f"UPDATE chain_event SET pid = {ROWS[24].id} WHERE id = {ROWS[26].id}",  # noqa: S608 - numbers
    )
    counted = finding(Kind.BATCH_COUNT, id=FIRST, until_id=LAST, count=9, expected_count=10)
    assert counted in verified().findings


def test_seals_with_the_last_row_of_a_batch_under_another_id_name_the_range(
    verified: Verified, change: Execute
) -> None:
    moved = (LAST or 0) - 1
    change(
        f"UPDATE chain_event SET id = {moved} WHERE id = {LAST}",  # noqa: S608 - numbers
        f"UPDATE chain_event SET pid = {moved} WHERE id = {ROWS[30].id}",  # noqa: S608 - numbers
    )
    found = verified().findings
    expected = finding(
        Kind.BATCH_RANGE, id=FIRST, until_id=LAST, ids=(FIRST, moved), pid=ROWS[19].id
    )
    assert expected in found
    assert {one.kind for one in found} == {Kind.BATCH_RANGE}
    assert {one.id for one in found} == {FIRST, ROWS[30].id}


@pytest.mark.parametrize(
    "assignment", ["committed_at = committed_at + interval '1 us'", "epoch = epoch + 1"]
)
def test_seals_with_the_line_of_a_batch_changed_name_it(
    verified: Verified, change: Execute, assignment: str
) -> None:
    change(f"UPDATE chain_batch SET {assignment} WHERE last_id = {LAST}")  # noqa: S608 - numbers
    mismatch = finding(Kind.SEAL_MISMATCH, id=FIRST, until_id=LAST)
    assert mismatch in verified().findings


def test_seals_with_a_falling_epoch_name_the_batch(verified: Verified, change: Execute) -> None:
    change(f"UPDATE chain_batch SET epoch = 0 WHERE last_id = {LAST}")  # noqa: S608 - numbers
    epochs = finding(Kind.WRONG_EPOCH, id=FIRST, until_id=LAST, epoch=0, expected_epoch=1)
    mismatch = finding(Kind.SEAL_MISMATCH, id=FIRST, until_id=LAST)
    assert set(verified().findings) == {epochs, mismatch}


def test_seals_with_the_head_row_changed_name_it(verified: Verified, change: Execute) -> None:
    change("UPDATE chain_head SET last_seal = decode(repeat('00', 32), 'hex')")
    assert verified().findings == (finding(Kind.HEAD_SEAL, id=HEAD, until_id=HEAD),)


def test_seals_with_another_database_id_name_the_genesis(
    verified: Verified, change: Execute
) -> None:
    change("UPDATE schema_version SET database_id = gen_random_uuid()")
    assert verified().findings == (finding(Kind.SEAL_MISMATCH, id=0, until_id=0),)


def test_kept_seal_with_a_rewritten_tail_is_found_though_all_else_fits(
    verified: Verified, database: str
) -> None:
    kept = KeptSeal(id=HEAD, seal=asyncio.run(_head_seal(database)))
    assert verified(kept_seal=kept).is_clean
    asyncio.run(_rewrite_last_batch(database))
    assert verified().is_clean
    assert verified(kept_seal=kept).findings == (finding(Kind.KEPT_SEAL, id=HEAD, until_id=HEAD),)


def test_kept_seal_of_no_batch_is_found(verified: Verified) -> None:
    kept = KeptSeal(id=(LAST or 0) + 1, seal=bytes(32))
    assert verified(kept_seal=kept).counts == {"kept_seal": 1}


def test_seals_without_the_database_are_refused(spark: SparkSession) -> None:
    request = VerifyRequest(chain_id=1, sources=(JournalSource(path="x"),), seals=True)
    with pytest.raises(SettingError, match="whose seals"):
        verify(request, spark)


async def _head_seal(dsn: str) -> bytes:
    import asyncpg

    connection = await asyncpg.connect(dsn, timeout=10, command_timeout=20)
    try:
        seal: bytes = await connection.fetchval("SELECT last_seal FROM chain_head")
        return seal
    finally:
        await connection.close(timeout=5)


async def _rewrite_last_batch(dsn: str) -> None:
    """Change a row, and every seal behind it: what only the owner of the tables can do."""
    import asyncpg

    connection = await asyncpg.connect(dsn, timeout=10, command_timeout=20)
    try:
        batch = await connection.fetchrow(
            "SELECT n.*, p.seal AS before, (extract(epoch FROM n.committed_at) * 1000000)::bigint"
            " AS at_us FROM chain_batch n JOIN chain_batch p ON p.last_id = n.prev_last_id"
            " ORDER BY n.last_id DESC LIMIT 1"
        )
        rows = ROWS[-batch["row_count"] :]
        columns: list[Any] = [
            [getattr(row, name) for row in rows]
            for name in ("id", "pid", "key", "event_time_ns", "payload")
        ]
        columns[4][0] = b"changed"
        seal = next_seal(
            batch["before"], epoch=batch["epoch"], first_id=batch["first_id"],
            last_id=batch["last_id"], row_count=len(rows), committed_at_us=batch["at_us"],
            rows=column_images(CHAIN_ID, *columns),
        )  # fmt: skip
        await connection.execute(
            "UPDATE chain_event SET payload = $1 WHERE id = $2", b"changed", rows[0].id
        )
        await connection.execute("UPDATE chain_batch SET seal = $1 WHERE last_id = $2", seal, HEAD)
        await connection.execute("UPDATE chain_head SET last_seal = $1", seal)
    finally:
        await connection.close(timeout=5)
