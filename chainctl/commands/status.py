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
from chainctl.views import ChainLine, ReceiverLine, read_chains, read_receivers, write, write_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chainctl.settings import Settings


_RECEIVERS: Final = ("chain", "receiver", "head_delivered", "behind_rows", "behind_seconds",
                     "updated", "checkpoint", "halted")  # fmt: skip
_INTAKES: Final = ("source", "position", "rejects")
_CHAINS: Final = ("chain", "leader", "leader_state", "last_beat_seconds", "epoch", "head_persisted",
                  "published", "last_commit")  # fmt: skip


@click.command(cls=Command)
@some_chain_option
@demo_option
@json_option
@uses_settings("database", "connect_seconds")
def status(settings: Settings, chain_id: int | None, as_json: bool) -> None:
    """Show the state of a chain: its heads, its leader, its receivers, its intakes.

    Without --chain, show a line for each chain and each receiver.
    """
    chains, receivers, intakes = run_async(_read(settings, chain_id))
    if as_json and chain_id is None:
        data_json({"chains": [*map(_facts, chains)], "receivers": receivers})
    elif as_json:
        data_json({**_facts(chains[0]), "receivers": receivers, "intakes": intakes})
    else:
        if chain_id is None:
            write(_CHAINS, [*map(_facts, chains)])
        else:
            write_facts(_facts(chains[0]))
        tables: tuple[tuple[Sequence[str], Sequence[Any]], ...] = (
            (_RECEIVERS, receivers), (_INTAKES, intakes),
        )  # fmt: skip
        for columns, lines in tables:
            if lines:
                data("")
                write(columns, lines)


def _facts(chain: ChainLine) -> dict[str, Any]:
    """Return what is shown of one chain: also in words how late it is published."""
    return {**asdict(chain), "published": chain.published}


async def _read(
    settings: Settings, chain_id: int | None
) -> tuple[list[ChainLine], list[ReceiverLine], list[Mapping[str, Any]]]:
    async with looking(settings, chain_id) as connection:
        chains = await read_chains(connection, chain_id)
        receivers = await read_receivers(connection, chain_id)
        intakes = await connection.fetch(SQL["intakes"], chain_id)
    return chains, receivers, [dict(row) for row in intakes]
