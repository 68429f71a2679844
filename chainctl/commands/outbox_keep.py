"""`chainctl outbox keep`: a round of retention by hand, for when the disk fills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from chainctl.exits import ExitCode
from chainctl.options import json_option, uses_settings
from chainctl.outbox_options import retaining
from chainctl.output import data, data_json
from chainctl.running import run_async

if TYPE_CHECKING:
    from chainctl.settings import Settings
    from outbox.sender.retention import Kept


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
