"""`chainctl gaps`: the gap ledger of a chain's receivers."""

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
    "receiver", "after_id", "until_id", "rows", "cause", "source", "outcome", "found", "seconds",
)  # fmt: skip


class GapLine(Struct, frozen=True, kw_only=True):
    """One gap, as it is written out."""

    receiver: str
    after_id: int
    """The last row before it; exclusive."""
    until_id: int
    """The last row of it; inclusive."""
    rows: int
    cause: str
    source: str
    outcome: str
    """`filled`; `open`; or why it is neither: `missing`, `archived`, `not yet readable`,
    `interrupted`."""
    found: str
    seconds: float


@click.command()
@chain_option
@click.option("--name", metavar="NAME", help="Only those of this receiver.")
@json_option
@uses_settings("database", "connect_seconds")
def command(settings: Settings, chain_id: int, name: str | None, as_json: bool) -> None:
    """Show the gaps that receivers have met, and what became of them.

    Each receiver that keeps its checkpoint in the database, or reports to it, stores its last gaps
    there.
    """
    gaps = run_async(_gaps(settings, chain_id, name))
    if as_json:
        data_json(gaps)
        return
    table(_COLUMNS, [tuple(getattr(gap, column) for column in _COLUMNS) for gap in gaps])


async def _gaps(settings: Settings, chain_id: int, name: str | None) -> list[GapLine]:
    async with connected(settings.database_dsn(), settings.connect_seconds, AUDITOR) as connection:
        await database_id(connection)
        if await connection.fetchrow(SQL["chain"], chain_id) is None:
            raise ChainMissing(chain_id)
        rows = await connection.fetch(SQL["gaps"], chain_id, name)
    return [
        GapLine(
            receiver=row["receiver"],
            after_id=row["after_id"],
            until_id=row["until_id"],
            rows=row["row_count"],
            cause=row["cause"],
            source=row["source"],
            outcome=row["outcome"],
            found=f"{row['found_at']:%Y-%m-%dT%H:%M:%S.%fZ}",
            seconds=round(row["duration"].total_seconds(), 6),
        )
        for row in rows
    ]
