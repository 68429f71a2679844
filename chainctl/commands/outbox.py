"""`chainctl outbox`: runs a relay; shows and fixes messages that need no strict order."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click
import msgspec

from chainctl.commands.outbox_acts import abandon, resend, retry
from chainctl.commands.outbox_dead import group as dead
from chainctl.commands.outbox_deliveries import failed, list_, show, status
from chainctl.commands.outbox_destination import group as destination
from chainctl.exits import ExitCode, under_way
from chainctl.monitor_server import http_option, watched
from chainctl.options import SuggestingGroup, json_option, uses_settings
from chainctl.outbox_options import alert_webhook, consumer_logs, relaying, retaining
from chainctl.output import data, data_json, talk
from chainctl.running import report_ready, run_async
from orderchain.text import counted

if TYPE_CHECKING:
    from chainctl.settings import Settings
    from outbox import Relay
    from outbox.sender.upkeep import Kept


@click.command()
@relaying
@retaining
@click.option("--alert-command", metavar="PROGRAM", help="Is run then, with JSON on stdin.")
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
    webhook = alert_webhook(settings, given.pop("alert_webhook_file"))
    logs = consumer_logs(given.pop("consumer_logs"))
    chosen = {name: value for name, value in given.items() if value is not None}
    if "alert_command" in chosen:
        chosen["alert_command"] = (chosen["alert_command"],)
    config = RelayConfig(
        database=settings.database_dsn(),
        kafka=settings.kafka_config(),
        connect_seconds=settings.connect_seconds,
        alert_webhook=webhook,
        **chosen,
    )
    running = Relay(config, consumer_logs=logs)
    try:
        async with AsyncExitStack() as closing:
            for log in logs.values():
                closing.push_async_callback(log.close)
            watch = await closing.enter_async_context(watched(http))
            watch.add(running)
            await closing.enter_async_context(under_way(running))
            talk("chainctl: the relay runs")
            watch.report(lambda: _progress_of(running))
            report_ready("relays messages")
            await running.run()
    finally:
        if as_json:
            data_json(running.stats())


def _progress_of(running: Relay) -> str:
    stats = running.stats()
    return (
        f"{counted(stats.sent, 'message')} sent, {stats.consumed} deliveries confirmed, "
        f"{stats.abnormal} abnormal, {running.waiting} waiting"
    )


@click.command()
@retaining
@click.option(
    "--unsafe-durability",
    is_flag=True,
    help="Work on a database that may lose what it has committed. For throw-away data only.",
)
@json_option
@uses_settings("database", "connect_seconds")
def keep(settings: Settings, as_json: bool, **given: Any) -> ExitCode:  # noqa: ANN401 - click's own
    """Drop finished history now, and measure the outbox; exit code 1 while it is too large.

    Relays do the same once a minute by their own settings. Drop more than they would with
    --history-bytes-max; allow messages to be added again with a larger --outbox-bytes-max.
    """
    done = run_async(_keep(settings, given))
    if as_json:
        data_json(done)
    else:
        for name, value in msgspec.structs.asdict(done).items():
            data(f"{name}: {value}")
    return ExitCode.FINDINGS if done.is_full or done.partitions_left else ExitCode.CLEAN


async def _keep(settings: Settings, given: dict[str, Any]) -> Kept:
    from outbox import KeepConfig, keep_outbox

    chosen = {name: value for name, value in given.items() if value is not None}
    config = KeepConfig(
        database=settings.database_dsn(), connect_seconds=settings.connect_seconds, **chosen
    )
    return await keep_outbox(config)


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Messages that must arrive, in any order: the sender's side, and a consumer's dead letters."""


for _each in (relay, destination, status, list_, show, failed, retry, abandon, resend, keep, dead):
    command.add_command(_each)
