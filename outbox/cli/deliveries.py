"""`chainctl outbox`: messages and deliveries, their errors, and acts on them by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from chain_kernel.errors import SettingError
from chain_kernel.text import counted
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import (
    Command,
    act_by_hand,
    actor_option,
    json_option,
    limit_option,
    options,
    reason_option,
    since_option,
    uses_settings,
)
from chainctl.output import data, data_json, table, talk
from chainctl.units import Integer, Span
from outbox.acts import (
    COUNTED,
    DeliveryFilter,
    find,
    last_acts,
    look,
    read_counts,
)
from outbox.cli.connections import act_on_deliveries, outbox_of
from outbox.roles import OUTBOX_OPERATOR
from outbox.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from chainctl.settings import Settings
    from outbox.acts import Act

_T = TypeVar("_T")

# -- shared by the commands of the outbox ---------------------------------------------------------


def asked(
    settings: Settings,
    ask: Callable[..., Awaitable[_T]],
    *given: object,
    role: str = OUTBOX_OPERATOR,
) -> _T:
    """Return the result of `ask`, given a connection to the outbox's database and the rest."""

    async def run() -> _T:
        async with outbox_of(settings, role) as connection:
            return await ask(connection, *given)

    return run_async(run())


def listed(rows: Sequence[Any], columns: Sequence[str], as_json: bool) -> None:
    """Write all of `rows`, mappings or structs, as JSON, or these columns of them as a table."""
    if as_json:
        data_json(rows)
        return
    values = [
        [row[name] if isinstance(row, dict) else getattr(row, name) for name in columns]
        for row in rows
    ]
    table(columns, [list(map(cell, each)) for each in values])


def cell(value: object) -> object:
    """Return what a table shows of a value."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return round(value, 1)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else value if isinstance(value, int | str) else str(value)


_STATUSES: Final = tuple(status.name.lower() for status in Status)


id_option: Final = click.option(
    "--id", "message_ids", multiple=True, type=click.UUID, metavar="UUID",
    help="Only these messages. May be repeated.",
)  # fmt: skip

consumer_option: Final = click.option(
    "--consumer", metavar="NAME", help="Only those of this consumer."
)

filtered: Final = options(
    id_option,
    click.option("--destination", metavar="NAME", help="Only those to this destination."),
    consumer_option,
    click.option(
        "--older-than", type=Span(), metavar="SPAN", help="Only messages made so long ago (2h, 1d)."
    ),
    click.option(
        "--limit", type=Integer(1, 1_000_000), default=100, show_default=True, metavar="COUNT",
        help="Show at most so many deliveries.",
    ),
)  # fmt: skip
"""Gives a command the options of the filter."""

status_option: Final = click.option(
    "--status", "statuses", multiple=True, type=click.Choice(_STATUSES), help="May be repeated."
)


def acting(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what gives a command the options that an act on each `what` needs besides a filter."""
    return options(
        click.option(
            "--all", "is_all", is_flag=True, help=f"Apply to every eligible {what}, up to --limit."
        ),
        reason_option,
        actor_option,
        click.option("--dry-run", is_flag=True, help="Only show which ones are eligible."),
        json_option,
        uses_settings("database", "connect_seconds"),
    )


def chosen_filter(given: dict[str, Any]) -> DeliveryFilter:
    """Return what a call has chosen by those options."""
    older_than = given["older_than"]
    before = None if older_than is None else datetime.now(UTC) - timedelta(seconds=older_than)
    return DeliveryFilter(
        message_ids=given["message_ids"],
        destination=given["destination"],
        consumer=given["consumer"],
        statuses=tuple(Status[name.upper()] for name in given.get("statuses", ())),
        before=before,
        key=given.get("key"),
        limit=given["limit"],
    )


# -- commands that show ---------------------------------------------------------------------------

_COLUMNS: Final = ("message_id", "destination", "consumer", "status", "tries", "next_send")


@click.command(cls=Command)
@click.option(
    "--overdue", "overdue_seconds", type=Span(), default="1m", show_default=True, metavar="SPAN",
    help="A delivery is overdue if it was not sent for so long since it fell due.",
)  # fmt: skip
@json_option
@uses_settings("database", "connect_seconds")
def status(settings: Settings, overdue_seconds: float, as_json: bool) -> ExitCode:
    """Show how many deliveries have which status, and what is wrong with their destinations.

    Exit code 1 when some are abnormal or overdue, a topic is missing, a consumer is silent, or no
    relay runs while deliveries are overdue.
    """

    found = asked(settings, read_counts, overdue_seconds)
    listed(found, COUNTED, as_json)
    wrong = ("trouble", "silent", "overdue")
    is_wrong = any(row["status"] == "abnormal" or any(map(row.get, wrong)) for row in found)
    return ExitCode.FINDINGS if is_wrong else ExitCode.CLEAN


@click.command("list", cls=Command)
@filtered
@click.option("--key", metavar="KEY", help="Only those of messages with this key.")
@status_option
@json_option
@uses_settings("database", "connect_seconds")
def list_(
    settings: Settings,
    as_json: bool,
    **given: Any,  # noqa: ANN401
) -> None:
    """List deliveries, the oldest first; finished ones only by their --status or --id."""

    listed(asked(settings, find, chosen_filter(given)), _COLUMNS, as_json)


@click.command(cls=Command)
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
        data(f"delivery to {each.consumer or 'no one'}: {each.status}, {tries}{place}{because}")
    for each in shown["acts"]:
        change = f"{each['from_status']} -> {each['to_status']}"
        data(f"{each['acted_at']} {each['act']} ({change}) by {each['actor']}: {each['reason']}")


async def _show(settings: Settings, message_id: UUID) -> dict[str, Any]:
    async with outbox_of(settings) as connection:
        message, done = await look(connection, message_id)
        deliveries = await find(connection, DeliveryFilter(message_ids=(message_id,)))
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
        "acts": list(map(_act_of, done)),
    }


_ACT_COLUMNS: Final = (
    "act_id", "acted_at", "act", "message_id", "consumer", "change", "actor", "login", "reason",
)  # fmt: skip


@click.command(cls=Command)
@since_option
@limit_option
@json_option
@uses_settings("database", "connect_seconds")
def acts(
    settings: Settings,
    since_seconds: float | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show what people did to messages by hand, and why; the last first.

    Acts are kept forever, also those on messages that are no longer stored.
    """

    found = list(map(_act_of, asked(settings, last_acts, since_seconds, limit)))
    if not as_json:
        found = [{**r, "change": f"{r['from_status']} -> {r['to_status']}"} for r in found]
    listed(found, _ACT_COLUMNS, as_json)


def _act_of(row: Mapping[str, Any]) -> dict[str, Any]:
    statuses = {name: Status(row[name]).name.lower() for name in ("from_status", "to_status")}
    return {**row, **statuses}


# -- acts, each with actor and reason -------------------------------------------------------------


@click.command(cls=Command)
@filtered
@acting("delivery")
def retry(settings: Settings, **given: Any) -> ExitCode:  # noqa: ANN401 - click's own
    """Give abnormal deliveries a new round of tries."""
    return _do(settings, "retry", given)


@click.command(cls=Command)
@filtered
@status_option
@acting("delivery")
def abandon(settings: Settings, **given: Any) -> ExitCode:  # noqa: ANN401 - click's own
    """End deliveries: they are never sent again.

    Abnormal ones, unless --status names init or confirmed: those are on their way, and a consumer
    may have read what was sent already.
    """
    return _do(settings, "abandon", given)


@click.command(cls=Command)
@filtered
@acting("delivery")
def resend(settings: Settings, **given: Any) -> ExitCode:  # noqa: ANN401 - click's own
    """Send deliveries now that are on their way, however far their consumer is."""
    return _do(settings, "resend", given)


def _do(settings: Settings, what: Act, given: dict[str, Any]) -> ExitCode:
    """Act, and end with 1 where there was nothing to change."""
    chosen = [given[name] for name in ("message_ids", "destination", "consumer", "older_than")]
    if not any(chosen) and not given["is_all"]:
        raise SettingError("filter", "nothing", "--id, --destination, --consumer, ... or --all")
    by = act_by_hand(given["actor"], given["reason"], given["dry_run"])
    wanted = chosen_filter(given)
    changed = run_async(act_on_deliveries(settings, what, wanted, by))
    done = "to be changed" if given["dry_run"] else "changed"
    more = " (there may be more: see --limit)" if len(changed) == given["limit"] else ""
    talk(f"chainctl: {counted(len(changed), 'delivery', 'deliveries')} {done} by {what}{more}")
    if given["as_json"] or changed:
        listed(changed, ("message_id", "consumer", "status"), given["as_json"])
    if changed:
        return ExitCode.CLEAN
    takes = "that are on their way" if what == "resend" else "that are abnormal"
    if given.get("statuses"):
        takes = "that are init, confirmed or abnormal"
    talk(f"chainctl: {what} changes deliveries {takes}, and none of those is chosen")
    return ExitCode.FINDINGS
