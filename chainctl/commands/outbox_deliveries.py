"""`chainctl outbox status`, `list` and `show`: the state of messages and their deliveries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from chainctl.exits import ExitCode
from chainctl.options import Integer, json_option, uses_settings
from chainctl.outbox_options import cell, chosen_filter, filtered, outbox_of, status_option
from chainctl.output import data, data_json, table
from chainctl.running import run_async
from orderchain.errors import SettingError
from orderchain.text import counted

if TYPE_CHECKING:
    from uuid import UUID

    from chainctl.settings import Settings
    from outbox.acts import ListedDelivery

_COLUMNS: Final = ("message_id", "destination", "consumer", "status", "tries", "next_send")


@click.command()
@json_option
@uses_settings("database", "connect_seconds")
def status(settings: Settings, as_json: bool) -> ExitCode:
    """Show how many deliveries have which status, and what is wrong with their destinations.

    Exit code 1 when some are abnormal, a topic is missing, or a consumer is not heard of.
    """
    found = run_async(_counts(settings))
    if as_json:
        data_json(found)
    else:
        columns = ("destination", "status", "deliveries", "oldest_seconds", "trouble")
        table(columns, [[cell(row[column]) for column in columns] for row in found])
    is_abnormal = any(row["status"] == "abnormal" or row["trouble"] for row in found)
    return ExitCode.FINDINGS if is_abnormal else ExitCode.CLEAN


async def _counts(settings: Settings) -> list[dict[str, Any]]:
    from outbox import acts
    from outbox.message import age_seconds

    async with outbox_of(settings) as connection:
        found = await acts.counts(connection)
        troubles = await acts.troubles(connection)
    now = time.time()
    rows: list[dict[str, Any]] = [
        {
            "destination": name,
            "status": status.name.lower(),
            "deliveries": deliveries,
            "oldest_seconds": None if oldest is None else age_seconds(oldest, now),
            "trouble": troubles.get(name),
        }
        for name, status, deliveries, oldest in found
    ]
    # A destination may be in trouble before anything goes to it.
    rows += [
        {
            "destination": name,
            "status": None,
            "deliveries": 0,
            "oldest_seconds": None,
            "trouble": troubles[name],
        }
        for name in sorted(set(troubles) - {row["destination"] for row in rows})
    ]
    return rows


@click.command("list")
@filtered
@click.option("--key", metavar="KEY", help="Only those of messages with this key.")
@status_option
@json_option
@uses_settings("database", "connect_seconds")
def list_(settings: Settings, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's own
    """List deliveries, the oldest first; finished ones only by their --status or --id."""
    found = run_async(_find(settings, given))
    if as_json:
        data_json(found)
        return
    table(_COLUMNS, [[cell(getattr(row, column)) for column in _COLUMNS] for row in found])


async def _find(settings: Settings, given: dict[str, Any]) -> list[ListedDelivery]:
    from outbox import acts

    async with outbox_of(settings) as connection:
        return await acts.find(connection, chosen_filter(given))


@click.command()
@click.argument("message_id", type=click.UUID)
@json_option
@uses_settings("database", "connect_seconds")
def show(settings: Settings, message_id: UUID, as_json: bool) -> None:
    """Show one message: what it is, its deliveries, and what people did to it."""
    shown = run_async(_show(settings, message_id))
    if as_json:
        data_json(shown)
        return
    for name in ("message_id", "destination", "key", "headers", "sender", "created", "bytes"):
        data(f"{name}: {cell(shown[name])}")
    for each in shown["deliveries"]:
        place = f" at {each.topic}/{each.partition}/{each.offset}" if each.topic else ""
        because = f": {each.last_error}" if each.last_error else ""
        tries = counted(each.tries, "try", "tries")
        data(f"delivery to {each.consumer or 'nobody'}: {each.status}, {tries}{place}{because}")
    for each in shown["acts"]:
        change = f"{each['from_status']} -> {each['to_status']}"
        data(f"{each['acted_at']} {each['act']} ({change}) by {each['actor']}: {each['reason']}")


async def _show(settings: Settings, message_id: UUID) -> dict[str, Any]:
    from outbox import acts
    from outbox.statuses import Status

    async with outbox_of(settings) as connection:
        message, done = await acts.look(connection, message_id)
        deliveries = await acts.find(connection, acts.DeliveryFilter(message_ids=(message_id,)))
    if message is None:
        raise SettingError("message_id", str(message_id), "a message that is stored")
    return {
        "message_id": message_id,
        "destination": message["destination"],
        "key": message["key"],
        "headers": message["headers"] and msgspec.json.decode(message["headers"]),
        "sender": message["sender"],
        "created": message["created_at"],
        "bytes": len(message["payload"]),
        "payload": message["payload"],
        "deliveries": deliveries,
        "acts": [
            {
                **dict(row),
                "from_status": Status(row["from_status"]).name.lower(),
                "to_status": Status(row["to_status"]).name.lower(),
            }
            for row in done
        ],
    }


@click.command()
@click.option(
    "--limit",
    type=Integer(1, 1_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Messages at most.",
)
@json_option
@uses_settings("database", "connect_seconds")
def failed(settings: Settings, limit: int, as_json: bool) -> None:
    """Show what businesses would have sent that failed, the newest first.

    It is kept where a business asks for it. Payloads come with --json, as base64.
    """
    found = run_async(_failed(settings, limit))
    if as_json:
        data_json(found)
        return
    columns = ("failed_at", "outcome", "message_id", "destination", "key", "error")
    table(columns, [[cell(row[column]) for column in columns] for row in found])


async def _failed(settings: Settings, limit: int) -> list[dict[str, Any]]:
    from outbox import acts

    async with outbox_of(settings) as connection:
        return await acts.failed(connection, limit)
