"""`chainctl status`: the state of a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from chainctl.database import SQL, connected, database_id
from chainctl.options import chain_option, json_option, uses_settings
from chainctl.output import data, data_json, table
from chainctl.running import run_async
from orderchain.errors import ChainMissing
from orderchain.roles import AUDITOR

if TYPE_CHECKING:
    from datetime import datetime

    from chainctl.settings import Settings

_Row = dict[str, object]

_RECEIVER_COLUMNS: Final = (
    "receiver", "head_delivered", "behind_ids", "updated", "checkpoint", "halted",
)  # fmt: skip


@click.command()
@chain_option
@json_option
@uses_settings("database", "connect_seconds")
def command(settings: Settings, chain_id: int, as_json: bool) -> None:
    """Show the state of a chain: its heads, its leader, its receivers, its intakes."""
    heads, receivers, intakes = run_async(_status(settings, chain_id))
    if as_json:
        data_json({**heads, "receivers": receivers, "intakes": intakes})
        return
    table(("what", "value"), list(heads.items()))
    for part, names in (
        (receivers, _RECEIVER_COLUMNS),
        (intakes, ("source", "position", "rejects")),
    ):
        if part:
            data("")
            table(names, [tuple(row[name] for name in names) for row in part])


async def _status(settings: Settings, chain_id: int) -> tuple[_Row, list[_Row], list[_Row]]:
    """Return the chain, its receivers and its intakes, of one snapshot."""
    async with connected(settings.database_dsn(), settings.connect_seconds, AUDITOR) as connection:
        await database_id(connection)
        # One snapshot: no receiver is ever seen ahead of the head.
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            chain = await connection.fetchrow(SQL["chain_status"], chain_id)
            if chain is None:
                raise ChainMissing(chain_id)
            receivers = await connection.fetch(SQL["receivers"], chain_id)
            intakes = await connection.fetch(SQL["intakes"], chain_id)
    return (
        {
            "chain": chain_id,
            "epoch": chain["epoch"],
            "leader": chain["owner"] or None,
            "head_persisted": chain["last_id"],
            "head_published": chain["published_id"],
            "last_commit": _when(chain["committed_at"]) if chain["last_id"] else None,
            "topic": chain["topic"],
            "partition_ids": chain["partition_ids"],
            "created": _when(chain["created_at"]),
        },
        [
            {
                "receiver": row["receiver"],
                "head_delivered": row["head_delivered"],
                "behind_ids": chain["last_id"] - row["head_delivered"],
                "updated": _when(row["updated_at"]),
                "checkpoint": row["checkpoint"],
                "halted": row["halted"],
            }
            for row in receivers
        ],
        [dict(row) for row in intakes],
    )


def _when(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%S.%fZ}"
