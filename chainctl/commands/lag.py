"""`chainctl lag`: how far the receivers of a chain are behind its head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct

from chainctl.database import SQL, connected, database_id
from chainctl.options import chain_option, json_option, uses_settings
from chainctl.output import data_json, table
from chainctl.running import run_async
from orderchain.errors import ChainMissing
from orderchain.roles import AUDITOR

if TYPE_CHECKING:
    from chainctl.settings import Settings

_COLUMNS: Final = (
    "receiver", "head_delivered", "behind_ids", "behind_rows", "behind_seconds", "updated",
    "halted",
)  # fmt: skip


class LagLine(Struct, frozen=True, kw_only=True):
    """One receiver, as it is written out."""

    receiver: str
    head_delivered: int
    """Its checkpoint, stored or reported: it does not include what was handed on since."""
    behind_ids: int
    behind_rows: int
    """Rows of the batches after its checkpoint; a batch that it has begun counts whole."""
    behind_seconds: float
    """Age of the first batch that its checkpoint does not cover, by the database's clock; 0 when
    all are covered."""
    updated: str
    halted: str
    """Why it has halted; empty while it has not."""


@click.command()
@chain_option
@json_option
@uses_settings("database", "connect_seconds")
def command(settings: Settings, chain_id: int, as_json: bool) -> None:
    """Show how far each receiver's checkpoint is behind the head of the chain.

    Receivers that keep their checkpoints in the database, or report to it, are shown.
    """
    lines = run_async(_lag(settings, chain_id))
    if as_json:
        data_json(lines)
        return
    table(_COLUMNS, [tuple(getattr(line, column) for column in _COLUMNS) for line in lines])


async def _lag(settings: Settings, chain_id: int) -> list[LagLine]:
    async with connected(settings.database_dsn(), settings.connect_seconds, AUDITOR) as connection:
        await database_id(connection)
        if await connection.fetchrow(SQL["chain"], chain_id) is None:
            raise ChainMissing(chain_id)
        rows = await connection.fetch(SQL["lag"], chain_id)
    return [
        LagLine(
            receiver=row["receiver"],
            head_delivered=row["head_delivered"],
            behind_ids=row["behind_ids"],
            behind_rows=row["behind_rows"],
            behind_seconds=round(row["behind_seconds"], 3),
            updated=f"{row['updated_at']:%Y-%m-%dT%H:%M:%S.%fZ}",
            halted=row["halted"],
        )
        for row in rows
    ]
