"""Reads from the database what the picture of a chain shows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from chain_verifier.config import DatabaseSource
from chain_verifier.html import GAPS_MAX, TILES_MAX, FilledGap, Picture, Tile
from chain_verifier.server import connection_to
from orderchain.errors import OrderchainError, SourceBroken
from orderchain.roles import AUDITOR
from orderchain.sql import load_sql
from orderchain.text import reason_of

if TYPE_CHECKING:
    from chain_verifier.config import VerifyRequest
    from orderchain.clients.database_config import DatabaseConfig


_SQL: Final = load_sql("chain_verifier.local", "chart_data.sql")


def read_picture(request: VerifyRequest) -> Picture | None:
    """Return the picture of the chain; None when the database is not among the sources.

    Raises SourceBroken.
    """
    source = next((s for s in request.sources if isinstance(s, DatabaseSource)), None)
    if source is None:
        return None
    try:
        return asyncio.run(_read(source.database, request.chain_id, request.start))
    except OrderchainError as error:
        raise SourceBroken(source.name, reason_of(error)) from error


async def _read(database: str | DatabaseConfig, chain_id: int, start: int) -> Picture:
    async with connection_to(database, AUDITOR) as connection:
        tiles = await connection.fetch(_SQL["tiles"], chain_id, start, TILES_MAX)
        gaps = await connection.fetch(_SQL["gaps"], chain_id, start, GAPS_MAX)
    return Picture(
        tiles=tuple(Tile(**row) for row in tiles), gaps=tuple(FilledGap(**row) for row in gaps)
    )
