"""`chainctl messages`: the outbox as an HTTP service, for services that own no outbox."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from chainctl.exits import under_way
from chainctl.options import Integer, Seconds, SuggestingGroup, json_option, uses_settings
from chainctl.outbox_options import alert_webhook, consumer_logs, relaying
from chainctl.output import data, data_json, talk
from chainctl.running import report_ready, run_async
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from chainctl.settings import Settings
    from outbox import InboxLog
    from outbox.callback.config import CallbackConfig
    from outbox.service.config import Clients, ServiceConfig


class Token(Struct, frozen=True, kw_only=True):
    """A new token, and what the file of clients holds of it."""

    token: str
    token_sha256: str


@click.group(cls=SuggestingGroup)
def command() -> None:
    """The message service: the outbox over HTTP."""


@command.command()
@json_option
def token(as_json: bool) -> None:
    """Draw a token for a client.

    The client keeps the token; its hash goes into the file of clients. It is not stored anywhere.
    """
    from outbox.service.config import draw_token, hash_token

    drawn = draw_token()
    made = Token(token=drawn, token_sha256=hash_token(drawn).hex())
    if as_json:
        data_json(made)
    else:
        data(f"token         {made.token}")
        data(f"token_sha256  {made.token_sha256}")


@command.command()
@click.option(
    "--clients",
    "clients_path",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file with the clients and their tokens' hashes.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    type=Integer(0, 65_535),
    default=8_085,
    show_default=True,
    help="Port to listen at; 0 takes a free one.",
)
@relaying
@click.option(
    "--check-seconds",
    type=Seconds(30 * 86_400),
    metavar="N",
    help="When the sender of a prepared message is first asked.  [default: 30]",
)
@click.option(
    "--checks-max",
    type=Integer(1, 1_000),
    metavar="N",
    help="Answers 'unknown' after which it is abnormal.  [default: 16]",
)
@click.option(
    "--callback",
    is_flag=True,
    help="Be a callback service, too: see --check-topic, --confirm-topic, --callback-database.",
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
    callback = _callback_config(settings, given) if given["callback"] else None
    logs = consumer_logs(given["consumer_logs"])
    run_async(_serve(_service_config(settings, given), clients, callback, logs))


async def _serve(
    config: ServiceConfig,
    clients: Clients,
    callback: CallbackConfig | None,
    logs: dict[str, InboxLog],
) -> None:
    from outbox.service.server import MessageService

    async with AsyncExitStack() as stack:
        for log in logs.values():
            stack.push_async_callback(log.close)
        service = MessageService(config, clients, callback=callback, consumer_logs=logs)
        await stack.enter_async_context(under_way(service))
        talk(f"chainctl: messages are served at {service.address}")
        report_ready(f"serves messages at {service.address}")
        await service.run()


def _service_config(settings: Settings, given: dict[str, Any]) -> ServiceConfig:
    """Return the settings of the service. Raises SettingError."""
    from outbox.sender.check_back import CheckingConfig
    from outbox.sender.config import RelayConfig
    from outbox.sender.verdicts import CheckRules
    from outbox.service.config import ServiceConfig

    relay = _chosen(given, name="name", sweep_seconds="sweep_seconds")
    rules = _chosen(given, check_seconds="first_seconds", checks_max="answers_max")
    return ServiceConfig(
        relay=RelayConfig(
            database=settings.database_dsn(),
            kafka=settings.kafka_config(),
            connect_seconds=settings.connect_seconds,
            alert_webhook=alert_webhook(settings, given["alert_webhook_file"]),
            unsafe_durability=given["unsafe_durability"],
            **relay,
        ),
        host=given["host"],
        port=given["port"],
        checking=CheckingConfig(rules=CheckRules(**rules)),
    )


def _callback_config(settings: Settings, given: dict[str, Any]) -> CallbackConfig:
    """Return the settings of the callback service. Raises SettingError."""
    from outbox.callback.config import CallbackConfig

    for name, flag in (("check_topic", "--check-topic"), ("confirm_topics", "--confirm-topic")):
        if not given[name]:
            raise SettingError(flag, "", "the name of a topic, since --callback is given")
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
