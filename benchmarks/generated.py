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
    connection = await asyncpg.connect(site.admin)
    try:
        for first in range(1, rows + 1, _CHUNK_ROWS):
            last = min(first + _CHUNK_ROWS - 1, rows)
            await connection.execute(SQL["extend"], chain_id, last)
            await connection.execute(SQL["rows"], chain_id, first, last)
            await connection.execute(SQL["batches"], chain_id, first, last, BATCH_ROWS)
        await connection.execute(SQL["head"], chain_id, rows)
        # What a chain that grew by and by has had done by autovacuum.
        await connection.execute("VACUUM (ANALYZE) chain_event, chain_batch")
    finally:
        await connection.close()
    return chain_id
