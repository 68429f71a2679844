"""Rows put into a real database in batches with true seals, as a sequencer leaves them."""

# ruff: noqa: S608 - every value in a statement is a number

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from chain_kernel.clock import ns_of
from chain_kernel.seal import genesis_seal
from chain_kernel.testing.memory_chain import sealed
from chain_verifier.verified_mark import set_mark
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row, events_of
from tests.integration.chain_verifier.published_frames import begin_term
from tests.opened import connected
from tests.stored_pages import execute, store_rows

PARTITION_IDS = 200
BATCH_ROWS = 10
PAGE_ROWS = 4
"""A batch has several pages, and a partition several batches."""
DROP_RULES = (
    "ALTER TABLE chain_page DROP CONSTRAINT chain_page_ends",
    "ALTER TABLE chain_page DROP CONSTRAINT chain_page_lengths",
    "ALTER TABLE chain_page DROP CONSTRAINT chain_page_no_null",
)
"""What an owner does first who makes of a page what none can be."""
FIRST_COMMIT = datetime(2026, 1, 1, tzinfo=UTC)


def batches_of(
    rows: Sequence[Row], batch_rows: int = BATCH_ROWS, partition_ids: int = PARTITION_IDS
) -> list[list[Row]]:
    """Return `rows` in batches, none of which straddles the bound of a partition."""
    found: list[list[Row]] = []
    for row in rows:
        last = found[-1] if found else []
        is_next = not last or len(last) == batch_rows
        if is_next or (row.id or 0) // partition_ids != (last[0].id or 0) // partition_ids:
            found.append([row])
        else:
            last.append(row)
    return found


async def store(
    dsn: str, rows: Sequence[Row], batch_rows: int = BATCH_ROWS, partition_ids: int = PARTITION_IDS
) -> None:
    """Create the chain and commit `rows`; the epoch rises once, half way."""
    async with connected(dsn) as connection:
        database_id = await connection.fetchval("SELECT database_id FROM schema_version")
        seal = genesis_seal(database_id, CHAIN_ID)
        await connection.execute(
            "SELECT chain_create($1, $2, $3, 0, $4)", CHAIN_ID, seal, "t", partition_ids
        )
        await begin_term(connection)
        batches = batches_of(rows, batch_rows, partition_ids)
        for number, batch in enumerate(batches):
            epoch = 1 if number < len(batches) // 2 else 2
            committed_at = FIRST_COMMIT + timedelta(seconds=number)
            seal = await _commit(connection, batch, seal, epoch, committed_at)


def mark_up_to(dsn: str, after_id: int, until_id: int, verified_by: str = "eve") -> bool:
    """Move the verified mark to the end of a batch, as a verification of its seal does."""
    seal = asyncio.run(_seal_at(dsn, until_id))
    return set_mark(
        dsn, dsn, CHAIN_ID, after_id=after_id, until_id=until_id, seal=seal, verified_by=verified_by
    )


async def _seal_at(dsn: str, last_id: int) -> bytes:
    async with connected(dsn) as connection:
        query = "SELECT seal FROM chain_batch WHERE chain_id = $1 AND last_id = $2"
        return await connection.fetchval(query, CHAIN_ID, last_id) or b""


async def archive(dsn: str, boundary_id: int) -> None:
    """Take out all rows up to the batch that ends with `boundary_id`, as retention does."""
    await execute(
        dsn,
        "UPDATE chain_batch SET first_id = last_id, prev_last_id = NULL, row_count = 0"
        f" WHERE last_id = {boundary_id}",
        f"DELETE FROM chain_batch WHERE last_id < {boundary_id}",
        f"DELETE FROM chain_event WHERE id <= {boundary_id}",
    )


def fields_of(row: Row) -> tuple[Any, ...]:
    """The columns of a row as they are in a page."""
    return row.id, row.pid, row.key, row.event_time_ns, row.payload


def seal_of(rows: Sequence[Row], seal_before: bytes, epoch: int, committed_at: datetime) -> bytes:
    """The seal after a batch of `rows`."""
    batch = sealed(
        events_of(rows),
        chain_id=CHAIN_ID,
        epoch=epoch,
        seal_before=seal_before,
        committed_at_us=ns_of(committed_at) // 1_000,
    )
    return batch.seal


async def _commit(
    connection: asyncpg.Connection, rows: Sequence[Row], seal: bytes, epoch: int,
    committed_at: datetime,
) -> bytes:  # fmt: skip
    last_id: Any = rows[-1].id
    first_id: Any = rows[0].id
    await connection.execute("SELECT chain_page_extend($1, $2)", CHAIN_ID, first_id)
    await connection.execute("SELECT chain_page_extend($1, $2)", CHAIN_ID, last_id)
    records = [fields_of(row) for row in rows]
    await store_rows(connection, CHAIN_ID, records, PAGE_ROWS)
    seal_after = seal_of(rows, seal, epoch, committed_at)
    await connection.execute(
        "INSERT INTO chain_batch VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        CHAIN_ID, first_id, last_id, rows[0].pid, len(rows), epoch, seal_after, committed_at,
    )  # fmt: skip
    await connection.execute(
        "UPDATE chain_head SET last_id = $2, last_seal = $3, epoch = $4 WHERE chain_id = $1",
        CHAIN_ID, last_id, seal_after, epoch,
    )  # fmt: skip
    return seal_after
