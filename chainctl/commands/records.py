"""`chainctl tail`, `show`, `rejects` and `acts`: stored rows, without SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from chain_kernel.limits import ID_MAX
from chain_kernel.text import counted
from chainctl.database import SQL, fetch_of_chain, looking
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import (
    ROW_ID,
    Command,
    Name,
    chain_option,
    json_option,
    limit_option,
    since_option,
    uses_settings,
)
from chainctl.output import data, data_json, talk
from chainctl.units import Integer
from chainctl.views import ActLine, lines_of, plain, write, write_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chainctl.settings import Settings

_TAIL: Final = ("id", "pid", "key", "time", "payload")
_REJECTS: Final = ("rejected_at", "source", "position", "key", "reason")
_ACTS: Final = ("act_id", "acted_at", "act", "receiver", "actor", "login", "reason", "detail")


@click.command(cls=Command)
@chain_option
@click.option(
    "--after", "after_id", type=ROW_ID, default=0, metavar="ID", help="Only rows after ID."
)
@click.option(
    "--limit", type=Integer(1, 10_000), default=10, metavar="COUNT", show_default=True,
    help="Show the last COUNT orders.",
)  # fmt: skip
@json_option
@uses_settings("database", "connect_seconds")
def tail(settings: Settings, chain_id: int, after_id: int, limit: int, as_json: bool) -> None:
    """Show the last orders of a chain, in their order."""
    rows = run_async(fetch_of_chain(settings, chain_id, "last_rows", after_id, limit))
    write(_TAIL, [plain(row) for row in rows[::-1]], as_json=as_json)


@click.command(cls=Command)
@chain_option
@click.option("--intake", "source", type=Name(), metavar="NAME", help="Only those of this intake.")
@since_option
@limit_option
@json_option
@uses_settings("database", "connect_seconds")
def rejects(
    settings: Settings,
    chain_id: int,
    source: str | None,
    since_seconds: float | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the records of intakes that became no order, and why; the last first.

    The record itself is in its source, at its position.
    """
    rows = run_async(fetch_of_chain(settings, chain_id, "rejects", source, since_seconds, limit))
    write(_REJECTS, [plain(row) for row in rows], as_json=as_json)


@click.command(cls=Command)
@chain_option
@since_option
@limit_option
@json_option
@uses_settings("database", "connect_seconds")
def acts(
    settings: Settings, chain_id: int, since_seconds: float | None, limit: int, as_json: bool
) -> None:
    """Show what people did to a chain by hand, and why; the last first."""
    rows = run_async(fetch_of_chain(settings, chain_id, "acts", since_seconds, limit))
    write(_ACTS, lines_of(ActLine, rows), as_json=as_json)


@click.command(cls=Command)
@chain_option
@click.argument("row_id", type=Integer(1, ID_MAX), metavar="ID")
@json_option
@uses_settings("database", "connect_seconds")
def show(settings: Settings, chain_id: int, row_id: int, as_json: bool) -> ExitCode:
    """Show one order: its row, its batch with the seal, who led, the verification that covers it,
    the gaps that receivers had there.

    Exit code 1 when the database has no row of this id.
    """
    found = run_async(_show(settings, chain_id, row_id))
    if as_json:
        data_json(found)
    else:
        _write_parts(found)
    if found["row"] is not None:
        return ExitCode.CLEAN
    talk(f"chainctl: chain {chain_id} {_why_not_there(found, row_id)}")
    return ExitCode.FINDINGS


def _why_not_there(found: Mapping[str, Any], row_id: int) -> str:
    batch, near = found["batch"], found["neighbours"]
    if row_id <= found["archived_until"]:
        where = f"rows up to {found['archived_until']} are in the archive alone"
        return f"has no row {row_id}: {where}"
    text = (
        f"has no row {row_id}; the row before is {near['before'] or 'none'}, "
        f"the row after {near['after'] or 'none'}"
    )
    if batch is None or batch["stored_rows"] == batch["row_count"]:
        return text
    stored = f"{batch['stored_rows']:,} of the {counted(batch['row_count'], 'row')} of its batch"
    return f"{text}; {stored} are stored: verify the chain"


async def _show(settings: Settings, chain_id: int, row_id: int) -> dict[str, Any]:
    given = (chain_id, row_id)
    async with looking(settings, chain_id) as connection:
        row = await connection.fetchrow(SQL["order_row"], *given)
        batch = await connection.fetchrow(SQL["batch_around"], *given)
        near = await connection.fetchrow(SQL["neighbours"], *given)
        archived_until = await connection.fetchval(SQL["archived_until"], chain_id)
        verified = await connection.fetchrow(SQL["verified_over"], *given)
        published_id = await connection.fetchval(SQL["published_id"], chain_id)
        skips = await connection.fetch(SQL["skips_over"], *given)
        gaps = await connection.fetch(SQL["gaps_over"], *given)
    is_covered = batch is not None and batch["first_id"] <= row_id <= batch["last_id"]
    return {
        "row": plain(row) if row else None,
        "neighbours": dict(near),
        "batch": plain(batch) if is_covered else None,
        "archived_until": archived_until,
        "published": None if published_id is None else row_id <= published_id and not skips,
        "verified": plain(verified) if verified and verified["after_id"] < row_id else None,
        "skipped": list(map(plain, skips)),
        "gaps": list(map(plain, gaps)),
    }


def _write_parts(found: Mapping[str, Any]) -> None:
    for part, value in found.items():
        if isinstance(value, list) and value:
            data(part)
            write(list(value[0]), value)
        elif isinstance(value, dict):
            data(part)
            write_facts(value)
        elif isinstance(value, bool):
            data(f"{part}: {'yes' if value else 'no'}")
        else:
            data(f"{part}: {value or 'none'}")
        data("")
