"""What the database of a rival holds after a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.chains import connect_to
from benchmarks.load import Stored
from benchmarks.rivals.rival import NotWhole
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from orderchain.clients.database_config import DatabaseConfig

SQL = load_sql("benchmarks.rivals", "queries.sql")


async def stored_chain_rows(database: DatabaseConfig, chain_id: int) -> Stored:
    """Count the rows of a chain that was written without the engine, and check their links."""
    return await _stored(database, SQL["chain_rows"], chain_id)


async def stored_bare_rows(database: DatabaseConfig, chain_id: int) -> Stored:
    """Count the rows of the table of a row per order, and check their links."""
    return await _stored(database, SQL["rows_stored"], chain_id)


async def stored_common_rows(database: DatabaseConfig) -> Stored:
    """Count the rows of the common way, and check their links."""
    return await _stored(database, SQL["common_rows"])


async def _stored(database: DatabaseConfig, query: str, *values: object) -> Stored:
    connection = await connect_to(database)
    try:
        row = await connection.fetchrow(query, *values)
    finally:
        await connection.close()
    if row["broken"]:
        raise NotWhole(f"{row['broken']} stored orders do not follow the one before")
    return Stored(rows=row["rows"], last_id=row["last_id"] or 0)


async def stored_recorded_rows(database: DatabaseConfig) -> Stored:
    """Count the events of the event-sourcing library, and check their versions."""
    return await _stored(database, SQL["recorded_rows"])
