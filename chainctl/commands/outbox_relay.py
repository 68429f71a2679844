"""`chainctl outbox relay`: sends what is stored, and takes confirms in."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from chainctl.exits import under_way
from chainctl.options import json_option, uses_settings
from chainctl.outbox_options import alert_webhook, consumer_logs, relaying, retaining
from chainctl.output import data_json, talk
from chainctl.running import run_async

if TYPE_CHECKING:
    from chainctl.settings import Settings


@click.command()
@relaying
@retaining
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
            await closing.enter_async_context(under_way(running))
            talk("chainctl: the relay runs")
            await running.run()
    finally:
        if as_json:
            data_json(running.stats())
