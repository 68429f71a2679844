"""`chainctl outbox`: runs a relay; shows and mends messages that need no strict order."""

from __future__ import annotations

import getpass
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from chainctl.commands.outbox_dead import group as dead_group
from chainctl.database import SQL, connected, version_refusal
from chainctl.exits import ExitCode
from chainctl.groups import SuggestingGroup
from chainctl.options import Integer, Seconds, json_option, uses_settings
from chainctl.outbox_options import acting, chosen_filter, filtered, status_option
from chainctl.output import data, data_json, table, talk
from chainctl.running import run_async
from chainctl.schema_parts import PARTS
from orderchain.errors import SchemaError, SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from chainctl.database import Connection
    from chainctl.settings import Settings
    from outbox.acts import Act, Changed, Delivery

_COLUMNS: Final = ("message_id", "destination", "consumer", "status", "tries", "next_send")
_PART: Final = PARTS["outbox"]


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Messages that must arrive, in any order: the sender's side, and a consumer's dead letters."""


command.add_command(dead_group)


# ------------------------------------------------------------------------------------------- relay


@command.command()
@click.option("--group", metavar="NAME", help="Kafka group of this database's relays.")
@click.option("--sweep-seconds", type=Seconds(3600), metavar="N", help="Pause of the sweep.")
@click.option(
    "--retention-hours",
    type=Seconds(24 * 366),
    metavar="N",
    help="How long finished messages are kept.",
)
@click.option(
    "--history-bytes-max",
    type=Integer(0, 2**62),
    metavar="N",
    help="Watermark: above it they are dropped earlier.",
)
@click.option("--alert-webhook", metavar="URL", help="Gets a POST when messages become abnormal.")
@click.option("--alert-command", metavar="PROGRAM", help="Is run then, with JSON on stdin.")
@json_option
@uses_settings("database", "kafka", "connect_seconds")
def relay(settings: Settings, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's own
    """Send what is stored in the outbox, until SIGTERM or Ctrl-C.

    Any number of them may run side by side. With --json the counters are written at the end.
    """
    run_async(_relay(settings, given, as_json))


async def _relay(settings: Settings, given: dict[str, Any], as_json: bool) -> None:
    from outbox import Relay, RelayConfig

    chosen = {name: value for name, value in given.items() if value is not None}
    if "alert_command" in chosen:
        chosen["alert_command"] = (chosen["alert_command"],)
    config = RelayConfig(
        database=settings.database_dsn(),
        kafka=settings.kafka_servers(),
        connect_seconds=settings.connect_seconds,
        **chosen,
    )
    running = Relay(config)
    try:
        async with running:
            talk("chainctl: the relay runs")
            await running.run()
    finally:
        if as_json:
            data_json(running.stats)


# ------------------------------------------------------------------------------------ destinations


@command.group(cls=SuggestingGroup)
def destination() -> None:
    """Where messages may go."""


@destination.command("set")
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
    async with connected(settings.database_dsn(), settings.connect_seconds) as connection:
        await _require(connection)
        await save_destinations(connection, [wanted])


@destination.command("list")
@json_option
@uses_settings("database", "connect_seconds")
def list_destinations(settings: Settings, as_json: bool) -> None:
    """Show the destinations."""
    rows = run_async(_destinations(settings))
    if as_json:
        data_json(rows)
        return
    columns = ("name", "topic", "consumers", "tries_max", "resend_seconds")
    table(columns, [[_cell(row[column]) for column in columns] for row in rows])


async def _destinations(settings: Settings) -> list[dict[str, Any]]:
    from outbox.store import SQL as OUTBOX_SQL

    async with connected(settings.database_dsn(), settings.connect_seconds) as connection:
        await _require(connection)
        rows = [dict(row) for row in await connection.fetch(OUTBOX_SQL["destinations"])]
    return sorted(rows, key=lambda row: str(row["name"]))


# ----------------------------------------------------------------------------------------- looking


@command.command()
@json_option
@uses_settings("database", "connect_seconds")
def status(settings: Settings, as_json: bool) -> ExitCode:
    """Show how many deliveries stand where; exit code 1 when some are abnormal."""
    found = run_async(_counts(settings))
    if as_json:
        data_json(found)
    else:
        columns = ("destination", "status", "deliveries", "oldest_seconds")
        table(columns, [[_cell(row[column]) for column in columns] for row in found])
    is_abnormal = any(row["status"] == "abnormal" for row in found)
    return ExitCode.FINDINGS if is_abnormal else ExitCode.CLEAN


async def _counts(settings: Settings) -> list[dict[str, Any]]:
    from outbox import acts

    async with connected(settings.database_dsn(), settings.connect_seconds) as connection:
        await _require(connection)
        found = await acts.counts(connection)
    now = datetime.now(UTC)
    return [
        {
            "destination": name,
            "status": stands.name.lower(),
            "deliveries": deliveries,
            "oldest_seconds": None if oldest is None else _age_seconds(oldest, now),
        }
        for name, stands, deliveries, oldest in found
    ]


@command.command("list")
@filtered
@status_option
@json_option
@uses_settings("database", "connect_seconds")
def list_(settings: Settings, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's own
    """List deliveries, the oldest first; finished ones only by their --status or --id."""
    found = run_async(_find(settings, given))
    if as_json:
        data_json(found)
        return
    table(_COLUMNS, [[_cell(getattr(row, column)) for column in _COLUMNS] for row in found])


async def _find(settings: Settings, given: dict[str, Any]) -> list[Delivery]:
    from outbox import acts

    async with connected(settings.database_dsn(), settings.connect_seconds) as connection:
        await _require(connection)
        return await acts.find(connection, chosen_filter(given))


@command.command()
@click.argument("message_id", type=click.UUID)
@json_option
@uses_settings("database", "connect_seconds")
def show(settings: Settings, message_id: UUID, as_json: bool) -> None:
    """Show one message: what it is, its deliveries, and what people did to it."""
    told = run_async(_show(settings, message_id))
    if as_json:
        data_json(told)
        return
    for name in ("message_id", "destination", "key", "headers", "sender", "created", "bytes"):
        data(f"{name}: {_cell(told[name])}")
    for each in told["deliveries"]:
        place = f" at {each.topic}/{each.partition}/{each.offset}" if each.topic else ""
        because = f": {each.last_error}" if each.last_error else ""
        tries = f"{each.tries} tries"
        data(f"delivery to {each.consumer or 'nobody'}: {each.status}, {tries}{place}{because}")
    for each in told["acts"]:
        change = f"{each['from_status']} -> {each['to_status']}"
        data(f"{each['acted_at']} {each['act']} ({change}) by {each['actor']}: {each['reason']}")


async def _show(settings: Settings, message_id: UUID) -> dict[str, Any]:
    from outbox import acts
    from outbox.statuses import Status

    async with connected(settings.database_dsn(), settings.connect_seconds) as connection:
        await _require(connection)
        message, done = await acts.look(connection, message_id)
        deliveries = await acts.find(connection, acts.Filter(message_ids=(message_id,)))
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


# ------------------------------------------------------------------------------------------ acting


@command.command()
@acting
def retry(settings: Settings, **given: Any) -> None:  # noqa: ANN401 - click's own
    """Give abnormal deliveries a new round of tries."""
    _do(settings, "retry", given)


@command.command()
@acting
def abandon(settings: Settings, **given: Any) -> None:  # noqa: ANN401 - click's own
    """End abnormal deliveries for good."""
    _do(settings, "abandon", given)


@command.command()
@acting
def resend(settings: Settings, **given: Any) -> None:  # noqa: ANN401 - click's own
    """Send deliveries now that are on their way, wherever their consumer stands."""
    _do(settings, "resend", given)


def _do(settings: Settings, what: Act, given: dict[str, Any]) -> None:
    chosen = [given[name] for name in ("message_ids", "destination", "consumer", "older_than")]
    if not any(chosen) and not given["is_all"]:
        raise SettingError("filter", "nothing", "--id, --destination, --consumer, ... or --all")
    changed = run_async(_act(settings, what, given))
    done = "would be" if given["dry_run"] else "were"
    more = " (there may be more: see --limit)" if len(changed) == given["limit"] else ""
    talk(f"chainctl: {len(changed)} deliveries {done} changed by {what}{more}")
    if given["as_json"]:
        data_json(changed)
    elif changed:
        columns = ("message_id", "consumer", "status")
        table(columns, [[_cell(getattr(row, column)) for column in columns] for row in changed])


async def _act(settings: Settings, what: Act, given: dict[str, Any]) -> Sequence[Changed]:
    from outbox import acts

    actor = f"{_user()}@{platform.node()}" if given["actor"] is None else given["actor"]
    actor = acts.checked_text("--actor", actor)
    reason = acts.checked_text("--reason", given["reason"])
    chosen = chosen_filter(given)
    async with connected(settings.database_dsn(), settings.connect_seconds) as connection:
        await _require(connection)
        if given["dry_run"]:
            return await acts.would_act(connection, what, chosen)
        return await acts.act(connection, what, chosen, actor=actor, reason=reason)


# ----------------------------------------------------------------------------------------- helpers


async def _require(connection: Connection) -> None:
    """Raise SchemaError unless the outbox's tables are there, in our version."""
    if not await connection.fetchval(SQL["has_table"], _PART.version_table):
        raise SchemaError("schema", "none", "the outbox's (chainctl schema apply --part outbox)")
    version = await connection.fetchval(SQL[_PART.version_table])
    if version != _PART.version:
        raise version_refusal(version, _PART.version)


def _age_seconds(message_id: UUID, now: datetime) -> float:
    """Return how long ago an id was made, by the time that it begins with."""
    return max(now.timestamp() - (message_id.int >> 80) / 1_000, 0.0)


def _cell(value: object) -> object:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return round(value, 1)
    return "" if value is None else value if isinstance(value, int | str) else str(value)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        return "unknown"
