"""`chainctl status` and `top`: the state of one chain, and of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct
from msgspec.structs import asdict

from chainctl.database import SQL, looking
from chainctl.demo_option import demo_option
from chainctl.event_loop import run_async
from chainctl.options import (
    Command,
    chain_option,
    json_option,
    some_chain_option,
    uses_settings,
    watch_option,
)
from chainctl.output import data, data_json, repeated
from chainctl.units import Span
from chainctl.views import (
    ChainLine,
    ReceiverLine,
    read_receivers,
    write_facts,
    write_table,
)

if TYPE_CHECKING:
    from chainctl.settings import Settings


_RECEIVER_COLUMNS: Final = (
    "receiver", "head_delivered", "behind_ids", "behind_rows", "behind_seconds", "updated",
    "checkpoint", "halted",
)  # fmt: skip
_INTAKE_COLUMNS: Final = ("source", "position", "rejects")
_CHAIN_COLUMNS: Final = (
    "chain", "leader", "leader_state", "last_beat_seconds", "epoch", "head_persisted",
    "unpublished_rows", "unpublished_seconds", "last_commit",
)  # fmt: skip
_LAG_COLUMNS: Final = ("chain", "receiver", "behind_rows", "behind_seconds", "halted")

_TOP_SPAN: Final = "2s"


@click.command(cls=Command)
@chain_option
@watch_option
@demo_option
@json_option
@uses_settings("database", "connect_seconds")
def status(settings: Settings, chain_id: int, watch_seconds: float | None, as_json: bool) -> None:
    """Show the state of a chain: its heads, its leader, its receivers, its intakes."""

    def show() -> None:
        chain, receivers, intakes = run_async(_state(settings, chain_id))
        if as_json:
            data_json({**asdict(chain), "receivers": receivers, "intakes": intakes})
            return
        write_facts(chain)
        for columns, lines in ((_RECEIVER_COLUMNS, receivers), (_INTAKE_COLUMNS, intakes)):
            if lines:
                data("")
                write_table(columns, lines)

    repeated(watch_seconds, show)


@click.command(cls=Command)
@some_chain_option
@click.option(
    "--watch", "watch_seconds", type=Span(), metavar="SPAN", default=_TOP_SPAN,
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
        write_table(_CHAIN_COLUMNS, chains)
        data("")
        write_table(_LAG_COLUMNS, receivers)

    repeated(None if once else watch_seconds, show)


class IntakeLine(Struct, frozen=True, kw_only=True):
    """How far an intake was read."""

    source: str
    position: int
    rejects: int


async def _state(
    settings: Settings, chain_id: int
) -> tuple[ChainLine, list[ReceiverLine], list[IntakeLine]]:
    """Return the chain, its receivers and its intakes, of one snapshot."""
    async with looking(settings, chain_id) as connection:
        chain = ChainLine.of(await connection.fetchrow(SQL["chain_status"], chain_id))
        receivers = await read_receivers(connection, chain_id)
        intakes = await connection.fetch(SQL["intakes"], chain_id)
    return chain, receivers, [IntakeLine(**row) for row in intakes]


async def _overview(
    settings: Settings, chain_id: int | None
) -> tuple[list[ChainLine], list[ReceiverLine]]:
    """Return every chain, and every receiver with its lag, of one snapshot."""
    async with looking(settings, chain_id) as connection:
        chains = await connection.fetch(SQL["chain_status"], chain_id)
        return list(map(ChainLine.of, chains)), await read_receivers(connection, chain_id)
