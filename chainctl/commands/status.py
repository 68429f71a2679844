"""`chainctl status`: the state of one chain, or of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import asdict

from chainctl.commands.stack import demo_option
from chainctl.database import SQL, looking
from chainctl.event_loop import run_async
from chainctl.options import Command, json_option, some_chain_option, uses_settings
from chainctl.output import data, data_json
from chainctl.views import (
    ChainLine,
    ReceiverLine,
    ShadowLine,
    read_chains,
    read_receivers,
    read_shadows,
    write,
    write_facts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chainctl.settings import Settings


_RECEIVERS: Final = ("chain", "receiver", "head_delivered", "behind_rows", "behind_seconds",
                     "updated", "checkpoint", "halted")  # fmt: skip
_SHADOWS: Final = ("chain", "receiver", "shadow_of", "compared", "compared_id", "result", "updated")
_INTAKES: Final = ("source", "position", "rejects")
_CHAINS: Final = ("chain", "leader", "leader_state", "last_beat_seconds", "epoch", "head_persisted",
                  "published", "last_commit")  # fmt: skip


@click.command(cls=Command)
@some_chain_option
@demo_option
@json_option
@uses_settings("database", "connect_seconds")
def status(settings: Settings, chain_id: int | None, as_json: bool) -> None:
    """Show the state of a chain: its heads, its leader, its receivers and their shadows, its
    intakes.

    Without --chain, show a line for each chain, each receiver and each shadow.
    """
    chains, receivers, found, intakes = run_async(_read(settings, chain_id))
    shadows = [{**asdict(each), "result": each.result} for each in found]
    lines = {"receivers": receivers, "shadows": shadows}
    if as_json and chain_id is None:
        data_json({"chains": [*map(_facts, chains)], **lines})
    elif as_json:
        data_json({**_facts(chains[0]), **lines, "intakes": intakes})
    else:
        if chain_id is None:
            write(_CHAINS, [*map(_facts, chains)])
        else:
            write_facts(_facts(chains[0]))
        tables: tuple[tuple[Sequence[str], Sequence[Any]], ...] = (
            (_RECEIVERS, receivers), (_SHADOWS, shadows), (_INTAKES, intakes),
        )  # fmt: skip
        for columns, table in tables:
            if table:
                data("")
                write(columns, table)


def _facts(chain: ChainLine) -> dict[str, Any]:
    """Return what is shown of one chain: also in words how late it is published."""
    return {**asdict(chain), "published": chain.published}


async def _read(
    settings: Settings, chain_id: int | None
) -> tuple[list[ChainLine], list[ReceiverLine], list[ShadowLine], list[Mapping[str, Any]]]:
    async with looking(settings, chain_id) as connection:
        chains = await read_chains(connection, chain_id)
        receivers = await read_receivers(connection, chain_id)
        shadows = await read_shadows(connection, chain_id)
        intakes = await connection.fetch(SQL["intakes"], chain_id)
    return chains, receivers, shadows, [dict(row) for row in intakes]
