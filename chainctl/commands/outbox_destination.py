"""`chainctl outbox destination`: where messages may go, and who confirms them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from chainctl.groups import SuggestingGroup
from chainctl.options import Integer, Seconds, json_option, uses_settings
from chainctl.outbox_tables import cell, outbox_of
from chainctl.output import data_json, table, talk
from chainctl.running import run_async
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from chainctl.settings import Settings


@click.group("destination", cls=SuggestingGroup)
def group() -> None:
    """Where messages may go."""


@group.command("set")
@click.argument("name")
@click.option("--topic", required=True, metavar="TOPIC", help="The topic that messages go to.")
@click.option(
    "--consumer",
    "consumers",
    multiple=True,
    metavar="NAME",
    help="Who must confirm. May be repeated; none: nobody.",
)
@click.option(
    "--confirm-topic", metavar="TOPIC", help="Where they confirm.  [default: TOPIC.confirms]"
)
@click.option(
    "--tries-max", type=Integer(1, 1_000), metavar="N", help="Sends before it is abnormal."
)
@click.option(
    "--resend-seconds",
    type=Seconds(2_592_000),
    metavar="N",
    help="Time of the first try; it doubles.",
)
@click.option("--resend-seconds-max", type=Seconds(2_592_000), metavar="N", help="Its upper bound.")
@click.option(
    "--resend-filter/--no-resend-filter",
    default=None,
    help="Spare what is only queued at its consumer.",
)
@uses_settings("database", "connect_seconds")
def set_(settings: Settings, consumers: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401
    """Set a destination up, or change it."""
    chosen = {name: value for name, value in given.items() if value is not None}
    run_async(_set(settings, {**chosen, "consumers": consumers}))
    talk(f"chainctl: destination {given['name']} is set up")


async def _set(settings: Settings, given: dict[str, Any]) -> None:
    from outbox import Destination, save_destinations

    confirm = "required" if given["consumers"] else "none"
    try:
        wanted = msgspec.convert({**given, "confirm": confirm}, Destination)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("$.")[2].rstrip("`").partition("[")[0] or "destination"
        told = str(error).partition(" - at ")[0].removeprefix("Expected ").replace("`", "")
        raise SettingError(field, given.get(field), told) from None
    async with outbox_of(settings) as connection:
        await save_destinations(connection, [wanted])


@group.command("list")
@json_option
@uses_settings("database", "connect_seconds")
def list_destinations(settings: Settings, as_json: bool) -> None:
    """Show the destinations."""
    rows = run_async(_destinations(settings))
    if as_json:
        data_json(rows)
        return
    columns = ("name", "topic", "consumers", "tries_max", "resend_seconds")
    table(columns, [[cell(row[column]) for column in columns] for row in rows])


async def _destinations(settings: Settings) -> list[dict[str, Any]]:
    from outbox.store import SQL as OUTBOX_SQL

    async with outbox_of(settings) as connection:
        rows = [dict(row) for row in await connection.fetch(OUTBOX_SQL["destinations"])]
    return sorted(rows, key=lambda row: str(row["name"]))
