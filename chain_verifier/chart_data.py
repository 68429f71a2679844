"""What the picture of a chain shows, read from its database: batches, epochs, filled gaps."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.errors import OrderchainError, SourceBroken
from chain_kernel.sql import AUDITOR, load_sql
from chain_kernel.text import reason_of
from chain_verifier.config import DatabaseSource
from chain_verifier.server import connection_to

if TYPE_CHECKING:
    from chain_verifier.config import VerifyRequest

_SQL: Final = load_sql("chain_verifier", "chart_data.sql")

TILES_MAX: Final = 300
"""Maximum number of points per picture: about one per three pixels of its width, for any chain."""

GAPS_MAX: Final = 200
"""Maximum number of gaps that are drawn, the latest ones."""


class Tile(Struct, frozen=True, kw_only=True):
    """Neighbouring batches of one epoch, drawn as one point."""

    first_id: int
    last_id: int
    began_at: datetime
    """When the first of them was committed."""
    ended_at: datetime
    """When the last of them was."""
    batches: int
    rows: int
    rows_max: int
    """Rows of the largest of them."""
    epoch: int


class FilledGap(Struct, frozen=True, kw_only=True):
    """What one receiver read from the database, since it did not arrive by Kafka."""

    receiver: str
    after_id: int
    until_id: int
    cause: str
    outcome: str
    found_at: datetime


class ChartData(Struct, frozen=True, kw_only=True):
    """One chain as its database shows it."""

    tiles: tuple[Tile, ...] = ()
    """In the order of ids."""
    gaps: tuple[FilledGap, ...] = ()


def read_chart_data(request: VerifyRequest) -> ChartData | None:
    """Return what is drawn of a chain; None when the database is not among the sources.

    Raises SourceBroken.
    """
    source = next((s for s in request.sources if isinstance(s, DatabaseSource)), None)
    if source is None:
        return None
    try:
        return asyncio.run(_read(source, request.chain_id, request.start))
    except OrderchainError as error:
        raise SourceBroken(source.name, reason_of(error)) from error


async def _read(source: DatabaseSource, chain_id: int, start: int) -> ChartData:
    opening = connection_to(source.database, AUDITOR, source.connect_seconds)
    async with opening as connection:
        tiles = await connection.fetch(_SQL["tiles"], chain_id, start, TILES_MAX)
        gaps = await connection.fetch(_SQL["gaps"], chain_id, start, GAPS_MAX)
    return ChartData(
        tiles=tuple(Tile(**row) for row in tiles), gaps=tuple(FilledGap(**row) for row in gaps)
    )
