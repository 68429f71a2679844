"""Where a chain stands in its database, as archive and retention need to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from msgspec import Struct

from orderchain.errors import ChainMissing
from orderchain.schema import require_version
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

SQL: Final[Mapping[str, str]] = load_sql("chain_verifier.archive", "archive.sql")


class Place(Struct, frozen=True, kw_only=True):
    """One chain at one instant."""

    database_id: UUID
    last_id: int
    published_id: int
    partition_ids: int
    boundary_id: int
    """Rows up to it are in the archive alone; 0 for none."""
    boundary_seal: bytes
    verified_id: int | None
    """The verified mark; None when there is none."""


async def read_place(connection: Any, chain_id: int) -> Place:  # noqa: ANN401 - asyncpg's own
    """Return where the chain stands. Raises ChainMissing or SchemaError."""
    row = await connection.fetchrow(SQL["place"], chain_id)
    require_version(row and row["version"])
    if row["last_id"] is None:
        raise ChainMissing(chain_id)
    return Place(
        **{name: row[name] for name in Place.__struct_fields__ if name != "database_id"},
        database_id=UUID(bytes=row["database_id"].bytes),
    )
