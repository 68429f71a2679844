"""`chainctl status` and `top`: the state of one chain, or of all on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from chainctl.database import SQL, looking, utc
from chainctl.demo_option import demo_option
from chainctl.options import (
    Span,
    chain_option,
    json_option,
    some_chain_option,
    uses_settings,
    watch_option,
)
from chainctl.output import data, data_json, repeated, table
from chainctl.running import run_async

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chainctl.settings import Settings

_Row = dict[str, object]

_RECEIVER_COLUMNS: Final = (
    "receiver", "head_delivered", "behind_ids", "updated", "checkpoint", "halted",
)  # fmt: skip
_CHAIN_COLUMNS: Final = (
    "chain", "leader", "leader_state", "last_beat_seconds", "epoch", "head_persisted",
    "unpublished_ids", "unpublished_seconds", "last_commit",
)  # fmt: skip
_LAG_COLUMNS: Final = ("chain", "receiver", "behind_rows", "behind_seconds", "halted")

_TOP_SECONDS: Final = 2.0


@click.command()
@chain_option
@watch_option
@demo_option
@json_option
@uses_settings("database", "connect_seconds")
def command(settings: Settings, chain_id: int, watch_seconds: float | None, as_json: bool) -> None:
    """Show the state of a chain: its heads, its leader, its receivers, its intakes."""

    def show() -> None:
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

    repeated(watch_seconds, show)


@click.command()
@some_chain_option
@click.option(
    "--watch", "watch_seconds", type=Span(), metavar="SPAN", default=_TOP_SECONDS,
    show_default=True, help="Show it again after each SPAN.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Show it once and end.")
@json_option
@uses_settings("database", "connect_seconds")
def top(
    settings: Settings, chain_id: int | None, watch_seconds: float, once: bool, as_json: bool
) -> None:
    """Show all chains with their leaders and receivers, until Ctrl-C."""

    def show() -> None:
        chains, receivers = run_async(_overview(settings, chain_id))
        if as_json:
            data_json({"chains": chains, "receivers": receivers})
            return
        table(_CHAIN_COLUMNS, [tuple(row[name] for name in _CHAIN_COLUMNS) for row in chains])
        data("")
        table(_LAG_COLUMNS, [tuple(row[name] for name in _LAG_COLUMNS) for row in receivers])

    repeated(None if once else watch_seconds, show)


async def _status(settings: Settings, chain_id: int) -> tuple[_Row, list[_Row], list[_Row]]:
    """Return the chain, its receivers and its intakes, of one snapshot."""
    async with looking(settings, chain_id) as connection:
        chain = await connection.fetchrow(SQL["chain_status"], chain_id)
        receivers = await connection.fetch(SQL["receivers"], chain_id)
        intakes = await connection.fetch(SQL["intakes"], chain_id)
    return (
        state_of(chain),
        [
            {
                "receiver": row["receiver"],
                "head_delivered": row["head_delivered"],
                "behind_ids": chain["last_id"] - row["head_delivered"],
                "updated": utc(row["updated_at"]),
                "checkpoint": row["checkpoint"],
                "halted": row["halted"],
            }
            for row in receivers
        ],
        [dict(row) for row in intakes],
    )


async def _overview(settings: Settings, chain_id: int | None) -> tuple[list[_Row], list[_Row]]:
    """Return every chain, and every receiver with its lag, of one snapshot."""
    async with looking(settings, chain_id) as connection:
        chains = [state_of(row) for row in await connection.fetch(SQL["chain_status"], chain_id)]
        receivers: list[_Row] = [
            {
                "chain": chain["chain"],
                "receiver": row["receiver"],
                "behind_rows": row["behind_rows"],
                "behind_seconds": round(row["behind_seconds"], 3),
                "halted": row["halted"],
            }
            for chain in chains
            for row in await connection.fetch(SQL["lag"], chain["chain"], None)
        ]
    return chains, receivers


def state_of(chain: Mapping[str, Any]) -> _Row:
    """Return a row of the statement `chain_status` as it is written out."""
    beat = chain["beat_age_seconds"]
    return {
        "chain": chain["chain_id"],
        "epoch": chain["epoch"],
        "leader": chain["owner"] or None,
        "leader_state": leader_state(chain),
        "leader_since": utc(chain["leader_since"]) if chain["leader_since"] else None,
        "last_beat_seconds": None if beat is None else round(beat, 3),
        "lease_seconds": chain["lease_seconds"],
        "backend": chain["backend_pid"] if chain["has_backend"] else None,
        "head_persisted": chain["last_id"],
        "head_published": chain["published_id"],
        "unpublished_ids": chain["last_id"] - chain["published_id"],
        "unpublished_seconds": round(chain["unpublished_seconds"], 3),
        "last_commit": utc(chain["committed_at"]) if chain["last_id"] else None,
        "topic": chain["topic"],
        "partition_ids": chain["partition_ids"],
        "created": utc(chain["created_at"]),
    }


def leader_state(chain: Mapping[str, Any]) -> str:
    """Return how alive the leader is: `leads`, `steps down`, `silent`, `handed over`, `never led`.

    It is silent once its last beat is older than its lease: then a standby takes over, if there is
    one. Both times are the database's, so a client's clock does not matter.
    """
    if chain["epoch"] == 0:
        return "never led"
    if chain["released"]:
        return "handed over"
    beat, lease = chain["beat_age_seconds"], chain["lease_seconds"]
    if beat is None or lease is None or beat > lease:
        return "silent"
    return "steps down" if chain["step_down"] else "leads"
