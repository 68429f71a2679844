"""`chainctl outbox destination`: the destinations of messages, and their settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from chain_kernel.errors import SettingError
from chainctl.options import Group, json_option, uses_settings
from chainctl.output import data, data_json, talk
from chainctl.units import Integer, Size, Span
from outbox.cli.deliveries import asked, cell, listed
from outbox.roles import OUTBOX_RELAY

if TYPE_CHECKING:
    from chainctl.settings import Settings


_MONTH: Final = Span(30 * 86_400)


@click.group("destination", cls=Group)
def group() -> None:
    """Destinations: topics that messages go to, and who confirms them."""


@group.command("set")
@click.argument("name")
@click.option("--topic", metavar="TOPIC", help="The topic that messages go to.")
@click.option(
    "--confirm",
    type=click.Choice(["required", "none"]),
    help="Whether its consumers confirm what they applied.  [default: as --consumer implies]",
)
@click.option(
    "--consumer",
    "consumers",
    multiple=True,
    metavar="NAME",
    help="A consumer that must confirm, in place of those that are set. May be repeated.",
)
@click.option(
    "--confirm-topic", metavar="TOPIC", help="Where they confirm.  [default: TOPIC.confirms]"
)
@click.option("--tries-max", type=Integer(1, 1_000), metavar="N", help="Give up after N sends.")
@click.option(
    "--resend-seconds", type=_MONTH, metavar="SPAN", help="Time of the first try (30s); it doubles."
)
@click.option(
    "--resend-seconds-max", type=_MONTH, metavar="SPAN", help="Upper bound of the pause (10m)."
)
@click.option(
    "--queue-seconds-max",
    type=_MONTH,
    metavar="SPAN",
    help="How long a message may wait unread at its consumer before it is sent again.",
)
@click.option(
    "--resend-filter/--no-resend-filter",
    default=None,
    help="Spare what is only queued at its consumer.",
)
@click.option(
    "--payload-bytes-max",
    type=Size(1, 524_288),
    metavar="SIZE",
    help="Refuse larger payloads (256KB).",
)
@click.option("--create-topics", is_flag=True, help="Create its topics where they are missing.")
@click.option(
    "--partitions",
    type=Integer(1, 10_000),
    metavar="COUNT",
    help="With --create-topics: partitions of TOPIC.  [default: 1]",
)
@json_option
@uses_settings("database", "kafka", "connect_seconds")
def set_(settings: Settings, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's own
    """Set a destination up, or change what is given and nothing else.

    A new one needs --topic. Fields that were never given have their defaults.
    """
    name, create_topics = given.pop("name"), given.pop("create_topics")
    partitions = given.pop("partitions")
    if partitions is not None and not create_topics:
        raise SettingError("--partitions", partitions, "--create-topics beside it")
    from outbox import change_destination

    change = partial(
        change_destination,
        name=name,
        create_topics=settings.kafka_config() if create_topics else None,
        partitions=partitions or 1,
        **{field: value for field, value in given.items() if value not in (None, ())},
    )
    done = asked(settings, change)
    talk(f"chainctl: destination {name} is set up")
    fields_listed(msgspec.structs.asdict(done), as_json)


@group.command("list")
@json_option
@uses_settings("database", "connect_seconds")
def list_destinations(settings: Settings, as_json: bool) -> None:
    """Show the destinations; --json shows all fields."""
    from outbox.sender.store import SQL as OUTBOX_SQL

    rows = asked(settings, lambda connection: connection.fetch(OUTBOX_SQL["destinations"]))
    columns = ("name", "topic", "consumers", "tries_max", "resend_seconds")
    listed(sorted(map(dict, rows), key=lambda row: str(row["name"])), columns, as_json)


@group.command()
@click.argument("name")
@uses_settings("database", "connect_seconds")
def remove(settings: Settings, name: str) -> None:
    """Remove a destination to which no delivery is unfinished; its topics and history stay.

    Messages to it are refused from then on.
    """
    from outbox.sender.maintenance import remove_destination

    asked(settings, remove_destination, name)
    talk(f"chainctl: destination {name} is removed")


@group.command()
@click.argument("name")
@uses_settings("database", "connect_seconds")
def key(settings: Settings, name: str) -> None:
    """Print the secret key by which consumers of a destination know its records.

    It goes into their setting `keys`. Needs the login of a relay. There is one for a destination
    that is not set up yet, too.
    """
    from outbox.record_mac import destination_key
    from outbox.sender.store import SQL as OUTBOX_SQL

    of_database = asked(
        settings,
        lambda connection: connection.fetchval(OUTBOX_SQL["confirm_key"]),
        role=OUTBOX_RELAY,
    )
    data(destination_key(of_database, name).hex())


def fields_listed(row: dict[str, Any], as_json: bool) -> None:
    """Write one thing: as JSON, or each field on a line."""
    if as_json:
        data_json(row)
        return
    for field, value in row.items():
        data(f"{field}: {cell(value)}")
