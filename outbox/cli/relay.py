"""`chainctl outbox relay` and `keep`, `messages`: processes that send what an outbox holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from chain_kernel.errors import SettingError
from chainctl.event_loop import report_ready, run_async
from chainctl.exits import ExitCode, under_way
from chainctl.monitor_server import http_option, watched
from chainctl.options import Command, Group, json_option, options, uses_settings
from chainctl.output import data, data_json, talk
from chainctl.units import Integer, Size, Span
from outbox.cli.destinations import fields_listed

if TYPE_CHECKING:
    from chainctl.settings import Settings
    from outbox.callback.config import CallbackConfig
    from outbox.service.config import Clients, ServiceConfig

# -- options of a relay ---------------------------------------------------------------------------

_unsafe_durability: Final = click.option(
    "--unsafe-durability", is_flag=True,
    help="Work on a database that may lose what it has committed. For throw-away data only.",
)  # fmt: skip

relaying: Final = options(
    click.option("--group", "name", metavar="NAME", help="Kafka group of this database's relays."),
    click.option(
        "--sweep-seconds", type=Span(3_600), metavar="SPAN", help="Wait so long between sweeps."
    ),
    _unsafe_durability,
)  # fmt: skip
"""Gives a command the options of a process that relays messages."""

retaining: Final = options(
    click.option(
        "--retention-hours", "retention_seconds", type=Span(366 * 86_400, unit="h"), metavar="SPAN",
        help="How long finished messages are kept; in hours without a unit (3d).  [default: 72]",
    ),
    click.option(
        "--history-bytes-max", type=Size(0), metavar="SIZE",
        help="First watermark: above it they are dropped earlier. 0: never.",
    ),
    click.option(
        "--outbox-bytes-max", type=Size(0), metavar="SIZE",
        help="Second watermark: above it adding is refused. 0: never.  "
        "[default: as it was set last]",
    ),
)  # fmt: skip
"""Gives a command the rules of retention."""


# -- outbox relay, keep ---------------------------------------------------------------------------


@click.command(cls=Command)
@relaying
@retaining
@http_option
@json_option
@uses_settings("database", "kafka", "connect_seconds", "log_format")
def relay(settings: Settings, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's own
    """Send what is stored in the outbox, until SIGTERM or Ctrl-C.

    Any number of them may run side by side. With --json the counters are written at the end.
    """
    run_async(_relay(settings, given, as_json))


async def _relay(settings: Settings, given: dict[str, Any], as_json: bool) -> None:
    from outbox import Relay, RelayConfig

    http = given.pop("http")
    chosen = {name: value for name, value in given.items() if value is not None}
    config = RelayConfig(
        database=settings.database_dsn(),
        kafka=settings.kafka_config(),
        connect_seconds=settings.connect_seconds,
        **chosen,
    )
    running = Relay(config)
    try:
        async with watched(http) as watch:
            watch.add(running)
            async with under_way(running):
                talk("chainctl: the relay runs")
                report_ready("relays messages")
                await running.run()
    finally:
        if as_json:
            data_json(running.stats())


@click.command(cls=Command)
@retaining
@_unsafe_durability
@json_option
@uses_settings("database", "connect_seconds")
def keep(settings: Settings, as_json: bool, **given: Any) -> ExitCode:  # noqa: ANN401 - click's own
    """Drop finished history now, and measure the outbox; exit code 1 while it is too large.

    Relays do the same once a minute by their own settings. Drop more than they would with
    --history-bytes-max; allow messages to be added again with a larger --outbox-bytes-max.
    """
    from outbox import KeepConfig, keep_outbox

    chosen = {name: value for name, value in given.items() if value is not None}
    config = KeepConfig(
        database=settings.database_dsn(), connect_seconds=settings.connect_seconds, **chosen
    )
    done = run_async(keep_outbox(config))
    fields_listed(msgspec.structs.asdict(done), as_json)
    return ExitCode.FINDINGS if done.is_full or done.partitions_left else ExitCode.CLEAN


# -- messages -------------------------------------------------------------------------------------


@click.group(cls=Group)
def messages() -> None:
    """The message service: the outbox over HTTP."""


@messages.command()
@json_option
def token(as_json: bool) -> None:
    """Draw a token for a client.

    The client keeps the token; its hash goes into the file of clients. It is not stored anywhere.
    """
    from outbox.service.config import draw_token, hash_token

    drawn = draw_token()
    made = {"token": drawn, "token_sha256": hash_token(drawn).hex()}
    if as_json:
        data_json(made)
    else:
        for name, value in made.items():
            data(f"{name:12}  {value}")


@messages.command()
@click.option(
    "--clients",
    "clients_path",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file with the clients and their tokens' hashes.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Where to listen."
)
@click.option(
    "--port",
    type=Integer(0, 65_535),
    default=8_085,
    show_default=True,
    help="Port to listen at; 0 takes a free one.",
)
@relaying
@retaining
@click.option(
    "--check-seconds",
    type=Span(30 * 86_400),
    metavar="SPAN",
    help="When the sender of a prepared message is first asked.  [default: 30]",
)
@click.option(
    "--checks-max",
    type=Integer(1, 1_000),
    metavar="N",
    help="Give up after so many answers 'unknown'.  [default: 16]",
)
@click.option(
    "--callback",
    is_flag=True,
    help="Serve callbacks, too: see --check-topic, --confirm-topic, --callback-database.",
)
@click.option("--check-topic", metavar="TOPIC", help="Where senders ask for delayed checks.")
@click.option(
    "--confirm-topic",
    "confirm_topics",
    multiple=True,
    metavar="TOPIC",
    help="Where their consumers confirm. May be repeated.",
)
@uses_settings("database", "callback_database", "kafka", "connect_seconds", "log_format")
def serve(settings: Settings, clients_path: Path, **given: Any) -> None:  # noqa: ANN401 - click's own
    """Serve messages over HTTP, until SIGTERM or Ctrl-C.

    Any number of instances may run side by side on the same database: each is a relay, too. Put
    a proxy with TLS before them. /openapi.json describes what they take, /livez and /readyz say
    how they are, /metrics what they count.
    """  # fmt: skip
    from outbox.service.config import read_clients

    clients = read_clients(clients_path)
    callback = _callback_config(settings, given)
    run_async(_serve(_service_config(settings, given), clients, callback))


async def _serve(
    config: ServiceConfig,
    clients: Clients,
    callback: CallbackConfig | None,
) -> None:
    from outbox.service.server import MessageService

    service = MessageService(config, clients, callback=callback)
    async with under_way(service):
        talk(f"chainctl: messages are served at {service.address}")
        report_ready(f"serves messages at {service.address}")
        await service.run()


def _service_config(settings: Settings, given: dict[str, Any]) -> ServiceConfig:
    from outbox.sender.check_back import CheckingConfig
    from outbox.sender.config import RelayConfig
    from outbox.sender.due_decisions import CheckRules
    from outbox.service.config import ServiceConfig

    same = "name", "sweep_seconds", "retention_seconds", "history_bytes_max", "outbox_bytes_max"
    relay = _chosen(given, **dict(zip(same, same, strict=True)))
    rules = _chosen(given, check_seconds="first_seconds", checks_max="answers_max")
    return ServiceConfig(
        relay=RelayConfig(
            database=settings.database_dsn(),
            kafka=settings.kafka_config(),
            connect_seconds=settings.connect_seconds,
            unsafe_durability=given["unsafe_durability"],
            **relay,
        ),
        host=given["host"],
        port=given["port"],
        checking=CheckingConfig(rules=CheckRules(**rules)),
    )


def _callback_config(settings: Settings, given: dict[str, Any]) -> CallbackConfig | None:
    from outbox.callback.config import CallbackConfig

    topics = given["check_topic"] or "", ", ".join(given["confirm_topics"])
    for flag, named in zip(("--check-topic", "--confirm-topic"), topics, strict=True):
        if given["callback"] and not named:
            raise SettingError(flag, "", "the name of a topic, since --callback is given")
        if named and not given["callback"]:
            raise SettingError(flag, named, "--callback beside it")
    if not given["callback"]:
        return None
    return CallbackConfig(
        database=settings.callback_dsn(),
        kafka=settings.kafka_config(),
        check_topic=given["check_topic"],
        confirm_topics=given["confirm_topics"],
        unsafe_durability=given["unsafe_durability"],
        connect_seconds=settings.connect_seconds,
    )


def _chosen(given: dict[str, Any], **names: str) -> dict[str, Any]:
    """Return the options that were given, under the names of the settings."""
    return {name: given[option] for option, name in names.items() if given[option] is not None}
