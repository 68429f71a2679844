"""Chains of many rows, made by the server itself; see `generated.sql`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import asyncpg

from benchmarks.chains import make_chain
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from benchmarks.chains import Site

SQL: Final = load_sql("benchmarks", "generated.sql")
BATCH_ROWS: Final = 1_000
_CHUNK_ROWS: Final = 1_000_000


async def generate_chain(site: Site, rows: int) -> int:
    """Return a new chain whose ids are 1 to `rows`, in batches of `BATCH_ROWS`, ready to read."""
    chain_id = await make_chain(site)
    await grow_chain(site, chain_id, 0, rows)
    return chain_id


async def grow_chain(site: Site, chain_id: int, after_id: int, last_id: int) -> None:
    """Add the rows behind `after_id`, the head, up to `last_id`; they show all at once."""
    connection = await asyncpg.connect(site.admin)
    try:
        for first in range(after_id + 1, last_id + 1, _CHUNK_ROWS):
            last = min(first + _CHUNK_ROWS - 1, last_id)
            await connection.execute(SQL["extend"], chain_id, last)
            await connection.execute(SQL["rows"], chain_id, first, last)
            await connection.execute(SQL["batches"], chain_id, first, last, BATCH_ROWS)
        await connection.execute(SQL["head"], chain_id, last_id)
        # What a chain that grew by and by has had done by autovacuum.
        await connection.execute("VACUUM (ANALYZE) chain_event, chain_batch")
    finally:
        await connection.close()
