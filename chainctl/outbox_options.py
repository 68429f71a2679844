"""What commands of the outbox share: options, the database, and cells of tables."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from chainctl.database import SQL, connected
from chainctl.options import Integer, Seconds, json_option, uses_settings
from chainctl.schema.parts import PARTS
from chainctl.settings import checked_dsn, variable_of
from orderchain.errors import SchemaError, SettingError
from orderchain.sql import OUTBOX_OPERATOR, require_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from chainctl.database import Connection
    from chainctl.settings import Settings
    from outbox import InboxLog
    from outbox.acts import DeliveryFilter


_PART: Final = PARTS["outbox"]


@asynccontextmanager
async def outbox_of(settings: Settings) -> AsyncIterator[Connection]:
    """Connect to the database with the outbox's tables.

    Raises ConnectError, and SchemaError unless they are there, in our version.
    """
    async with connected(
        settings.database_dsn(), settings.connect_seconds, OUTBOX_OPERATOR
    ) as connection:
        if not await connection.fetchval(SQL["has_table"], _PART.version_table):
            expected = "the outbox's (chainctl schema apply --part outbox)"
            raise SchemaError("schema", "none", expected)
        row = await connection.fetchrow(SQL[_PART.version_table])
        require_version(row, _PART.version, _PART.name)
        yield connection


def cell(value: object) -> object:
    """Return what a table shows of a value."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return round(value, 1)
    return "" if value is None else value if isinstance(value, int | str) else str(value)


_URL_BYTES_MAX: Final = 4096

_STATUSES: Final = (
    "init", "confirmed", "consumed", "abnormal", "prepared", "cancelled", "abandoned",
)  # fmt: skip


def relaying(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a process that relays messages."""
    for option in reversed(
        (
            click.option(
                "--group", "name", metavar="NAME", help="Kafka group of this database's relays."
            ),
            click.option(
                "--sweep-seconds", type=Seconds(3600), metavar="N", help="Pause of the sweep."
            ),
            click.option(
                "--alert-webhook-file",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Holds the URL that gets a POST when messages become abnormal. "
                f"[or env: {variable_of('alert_webhook')}]",
            ),
            click.option(
                "--consumer-log",
                "consumer_logs",
                multiple=True,
                metavar="NAME=FILE",
                help="A consumer whose inbox the relay may look into, and a file that holds the "
                "libpq URL of its database: what was applied is not sent again. May be repeated.",
            ),
            click.option(
                "--unsafe-durability",
                is_flag=True,
                help="Start on a database that may lose what it has committed. For throw-away data "
                "only.",
            ),
        )
    ):
        function = option(function)
    return function


def retaining(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the rules of retention."""
    for option in reversed(
        (
            click.option(
                "--retention-hours",
                "retention_seconds",
                callback=lambda _context, _option, hours: None if hours is None else hours * 3_600,
                type=Seconds(24 * 366),
                metavar="N",
                help="How long finished messages are kept.  [default: 72]",
            ),
            click.option(
                "--history-bytes-max",
                type=Integer(0, 2**62),
                metavar="N",
                help="First watermark: above it they are dropped earlier. 0: never.",
            ),
            click.option(
                "--outbox-bytes-max",
                type=Integer(0, 2**62),
                metavar="N",
                help="Second watermark: above it adding is refused. 0: never.  "
                "[default: as it was set last]",
            ),
        )
    ):
        function = option(function)
    return function


def alert_webhook(settings: Settings, path: Path | None) -> str:
    """Return the URL in the file `path`, else that of the settings; empty without one.

    Raises SettingError, which shows nothing of it.
    """
    if path is None:
        return settings.alert_webhook
    return _url_in(path, "--alert-webhook-file")


def consumer_logs(given: tuple[str, ...]) -> dict[str, InboxLog]:
    """Return the inboxes to look into, by consumer, for `NAME=FILE` each. Raises SettingError."""
    from outbox import InboxLog

    found: dict[str, InboxLog] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not (name and equals and path) or name in found:
            raise SettingError("--consumer-log", each, "NAME=FILE, each name once")
        url = _url_in(Path(path), "--consumer-log")
        dsn = checked_dsn("--consumer-log", url, f"the file {path}")
        found[name] = InboxLog(dsn, name)
    return found


def _url_in(path: Path, flag: str) -> str:
    """Return the URL that a file holds. Raises SettingError, which shows nothing of it."""
    try:
        with path.open("rb") as file:
            content = file.read(_URL_BYTES_MAX + 1)
    except OSError as error:
        expected = f"a readable file: {error.strerror or type(error).__name__}"
        raise SettingError(flag, str(path), expected) from None
    url = content.decode("ascii", "replace").strip()
    if not url.isprintable() or not url.isascii() or len(content) > _URL_BYTES_MAX or not url:
        raise SettingError(flag, str(path), "a file that holds one URL")
    return url


def filtered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the filter."""
    for option in reversed(
        (
            click.option(
                "--id",
                "message_ids",
                multiple=True,
                type=click.UUID,
                metavar="UUID",
                help="Only these messages. May be repeated.",
            ),
            click.option("--destination", metavar="NAME", help="Only those to it."),
            click.option("--consumer", metavar="NAME", help="Only those for it."),
            click.option(
                "--older-than",
                type=Seconds(10**9),
                metavar="SECONDS",
                help="Only messages made so long ago.",
            ),
            click.option(
                "--limit",
                type=Integer(1, 1_000_000),
                default=100,
                show_default=True,
                metavar="N",
                help="Deliveries at most.",
            ),
        )
    ):
        function = option(function)
    return function


status_option: Final = click.option(
    "--status", "statuses", multiple=True, type=click.Choice(_STATUSES), help="May be repeated."
)


def acting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that every act by hand needs."""
    for option in reversed(
        (
            filtered,
            click.option("--all", "is_all", is_flag=True, help="No filter: all that can be."),
            click.option(
                "--reason", required=True, metavar="TEXT", help="Why; it is stored for good."
            ),
            click.option("--actor", metavar="TEXT", help="Who does this.  [default: user@host]"),
            click.option("--dry-run", is_flag=True, help="Only show which deliveries it would be."),
            json_option,
            uses_settings("database", "connect_seconds"),
        )
    ):
        function = option(function)
    return function


def chosen_filter(given: dict[str, Any]) -> DeliveryFilter:
    """Return what a call has chosen by those options."""
    from outbox.acts import DeliveryFilter
    from outbox.statuses import Status

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
