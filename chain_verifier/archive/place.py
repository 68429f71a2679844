"""The extent of a chain in its database, as archive and retention need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from msgspec import Struct

from orderchain.errors import ChainMissing
from orderchain.sql import load_sql, require_version

if TYPE_CHECKING:
    from collections.abc import Mapping

SQL: Final[Mapping[str, str]] = load_sql("chain_verifier.archive", "archive.sql")


class ChainExtent(Struct, frozen=True, kw_only=True):
    """One chain at one instant."""

    database_id: UUID
    last_id: int
    published_id: int
    partition_ids: int
    boundary_id: int
    """Rows up to it are only in the archive; 0 for none."""
    boundary_seal: bytes
    verified_id: int | None
    """The verified mark; None when there is none."""


async def read_place(connection: Any, chain_id: int) -> ChainExtent:  # noqa: ANN401 - asyncpg's own
    """Return the extent of the chain. Raises ChainMissing or SchemaError."""
    row = await connection.fetchrow(SQL["place"], chain_id)
    require_version(row)
    if row["last_id"] is None:
        raise ChainMissing(chain_id)
    return ChainExtent(
        **{name: row[name] for name in ChainExtent.__struct_fields__ if name != "database_id"},
        database_id=UUID(bytes=row["database_id"].bytes),
    )
