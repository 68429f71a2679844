"""Reads from the database what is drawn of a chain."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import asyncpg

from chain_verifier.config import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, DatabaseSource
from chain_verifier.picture import GAPS_MAX, TILES_MAX, FilledGap, Picture, Tile
from chain_verifier.server import DRIVER_ERRORS
from orderchain.errors import SourceBroken
from orderchain.reasons import reason_of
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from chain_verifier.config import VerifyRequest

_SQL: Final = load_sql("chain_verifier.local", "picture.sql")


def read_picture(request: VerifyRequest) -> Picture | None:
    """Return the picture of the chain; None when the database is not among the sources.

    Raises SourceBroken.
    """
    source = next((s for s in request.sources if isinstance(s, DatabaseSource)), None)
    if source is None:
        return None
    try:
        return asyncio.run(_read(source.database, request.chain_id, request.start))
    except (OSError, *DRIVER_ERRORS) as error:
        raise SourceBroken(source.name, reason_of(error)) from error


async def _read(dsn: str, chain_id: int, start: int) -> Picture:
    connection = await asyncpg.connect(
        dsn,
        timeout=CONNECT_TIMEOUT_S,
        command_timeout=READ_TIMEOUT_S,
        server_settings={"application_name": "chain_verifier"},
    )
    try:
        tiles = await connection.fetch(_SQL["tiles"], chain_id, start, TILES_MAX)
        gaps = await connection.fetch(_SQL["gaps"], chain_id, start, GAPS_MAX)
    finally:
        connection.terminate()
    return Picture(
        tiles=tuple(Tile(**row) for row in tiles), gaps=tuple(FilledGap(**row) for row in gaps)
    )
