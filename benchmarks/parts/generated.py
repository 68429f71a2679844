"""Chains of many rows, made by the server itself; see `generated.sql`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.chains import connected, make_chain
from benchmarks.rivals.bare import make_partition
from orderchain.seal import PAGE_ROWS_MAX, seal_over
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from orderchain.clients.postgres import Record

SQL: Final = load_sql("benchmarks.parts", "generated.sql")
BATCH_ROWS: Final = 1_000
_CHUNK_ROWS: Final = 1_000_000


async def generate_chain(
    site: Site, rows: int, *, batch_rows: int = BATCH_ROWS, page_rows: int = PAGE_ROWS_MAX
) -> int:
    """Return a new chain whose ids are 1 to `rows`, ready to read.

    A batch is one page, or several of `page_rows`; then it must be a multiple of `page_rows`.
    """
    chain_id = await make_chain(site)
    await grow_chain(site, chain_id, 0, rows, batch_rows=batch_rows, page_rows=page_rows)
    return chain_id


async def generate_rows(site: Site, chain_id: int, rows: int) -> None:
    """Store what `generate_chain` made in the table of a row per order, too."""
    await make_partition(site, chain_id)
    async with connected(site.admin) as connection:
        await connection.execute(SQL["rows"], chain_id, 1, rows)
        await connection.execute("VACUUM (ANALYZE) bare_event")


async def grow_chain(
    site: Site,
    chain_id: int,
    after_id: int,
    last_id: int,
    *,
    batch_rows: int = BATCH_ROWS,
    page_rows: int = PAGE_ROWS_MAX,
) -> None:
    """Add the rows after `after_id`, the head, up to `last_id`; they all appear at once.

    Raises ValueError where a page would be of two batches.
    """
    page_rows = min(page_rows, batch_rows)
    if batch_rows % page_rows:
        raise ValueError(f"batch_rows was {batch_rows}, expected a multiple of {page_rows}")
    async with connected(site.admin) as connection:
        seal = await connection.fetchval(SQL["last_seal"], chain_id)
        for first in range(after_id + 1, last_id + 1, _CHUNK_ROWS):
            last = min(first + _CHUNK_ROWS - 1, last_id)
            await connection.execute(SQL["extend"], chain_id, last)
            await connection.execute(SQL["pages"], chain_id, first, last, page_rows)
            contents = await connection.fetch(SQL["contents"], chain_id, first, last, batch_rows)
            now_us = time.time_ns() // 1_000
            seals = _seals(seal, contents, now_us)
            ends = [[row[name] for row in contents] for name in ("first_id", "last_id")]
            await connection.execute(SQL["batches"], chain_id, *ends, seals, now_us)
            seal = seals[-1]
        await connection.execute(SQL["head"], chain_id, last_id, seal)
        # Autovacuum has done this for a chain that grew gradually.
        await connection.execute("VACUUM (ANALYZE) chain_page, chain_batch")


def _seals(seal: bytes, batches: Sequence[Record], committed_at_us: int) -> list[bytes]:
    """Return the seals after `batches`, of whose contents the server has made the digests."""
    seals = []
    for first_id, last_id, content in batches:
        seal = seal_over(
            seal,
            epoch=1,
            first_id=first_id,
            last_id=last_id,
            row_count=last_id - first_id + 1,
            committed_at_us=committed_at_us,
            content=content,
        )
        seals.append(seal)
    return seals
