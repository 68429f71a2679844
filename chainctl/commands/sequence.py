"""`chainctl sequence`: puts the rows of a file into a chain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from chainctl.options import chain_option, json_option, uses_settings
from chainctl.output import Stopwatch, data_json, progress, rate, talk
from chainctl.running import run_async
from chainctl.wiring import sequencer_config
from orderchain.errors import RetryError

if TYPE_CHECKING:
    from chainctl.feeding import Fed, Remainder
    from chainctl.intake.file import FileFormat, FileIntake
    from chainctl.output import ProgressBar
    from chainctl.settings import Settings
    from sequencer import SequencerConfig


class Sequenced(Struct, frozen=True, kw_only=True):
    """What `sequence` did."""

    chain: int
    source: str
    orders: int
    """Orders added by this call."""
    first_id: int | None
    last_id: int | None
    repeats: int
    """Rows whose keys were in the chain already, with the same content: they add nothing."""
    rows_before: int
    """Rows of the file that earlier calls had added."""
    seconds: float


@click.command()
@chain_option
@click.option(
    "--input",
    "path",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="CSV or JSON Lines, plain or .gz, .xz, .zst.",
)
@click.option(
    "--key-column",
    metavar="NAME",
    help="Column with the client's unique key.  [default: the key is FILE#ROW]",
)
@click.option(
    "--time-column",
    metavar="NAME",
    help="Column with the event's time since 1970: an integer in the unit that its name ends with "
    "(_s, _ms, _us, _ns).  [default: when it was sequenced]",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["csv", "jsonl"]),
    help="What the file is.  [default: by its name]",
)
@click.option(
    "--unsafe-durability",
    is_flag=True,
    help="Start on a database that may lose what it has acknowledged. For throw-away data only.",
)
@json_option
@uses_settings("database", "kafka", "batch_rows", "connect_seconds")
def command(
    settings: Settings,
    chain_id: int,
    path: Path,
    key_column: str | None,
    time_column: str | None,
    file_format: FileFormat | None,
    unsafe_durability: bool,
    as_json: bool,
) -> None:
    """Put the rows of a file into a chain, in their order.

    Every value is text; a row becomes a MessagePack map in the order of the columns. The same file
    again goes on where it ended and adds nothing twice; a file of another name is new orders.

    A row that cannot be read ends it with exit code 2: the rows before it are in the chain, none
    after it. Mend the row and run it again.
    """
    from chainctl.intake.file import FileIntake, FileOptions

    config = sequencer_config(settings, chain_id, unsafe_durability=unsafe_durability)
    options = FileOptions(key_column=key_column, time_column=time_column, format=file_format)
    with (
        FileIntake(path, options) as intake,
        progress(path.name, intake.file_bytes, "bytes") as bar,
    ):
        done = run_async(_sequence(settings, config, intake, bar))
    _tell(done)
    if as_json:
        data_json(done)


async def _sequence(
    settings: Settings, config: SequencerConfig, intake: FileIntake, bar: ProgressBar
) -> Sequenced:
    """Add what is new in the file. The chain is taken over only once there is something to add."""
    from chainctl.feeding import Fed, Remainder, pass_over, taken_before

    taken = await taken_before(settings, config.chain_id, intake.source)
    if taken is not None:
        await pass_over(intake, taken, bar)
    fed, rows_before = Fed(), intake.position
    first = intake.read(settings.batch_rows)
    seconds = 0.0
    if first is not None:
        try:
            seconds = await _add(config, Remainder(first, intake, taken), fed, bar)
        except Exception as error:
            if fed.orders:
                error.add_note(f"orders added before that: {fed.orders}")
            raise
    return Sequenced(
        chain=config.chain_id,
        source=intake.source,
        orders=fed.orders,
        first_id=fed.first_id,
        last_id=fed.last_id,
        repeats=fed.repeats,
        rows_before=rows_before,
        seconds=seconds,
    )


async def _add(config: SequencerConfig, remainder: Remainder, fed: Fed, bar: ProgressBar) -> float:
    """Lead the chain and feed it; returns the seconds from the first order to the last ack."""
    from chainctl.feeding import feed
    from sequencer import open_sequencer

    async with open_sequencer(config) as sequencer:
        if await sequencer.intake(remainder.intake.source) != remainder.taken:
            raise RetryError(f"another process adds {remainder.intake.source} to the chain too")
        fed.start(sequencer.stats().head_persisted)
        stopwatch = Stopwatch()
        await feed(sequencer, remainder, config.batch_rows_max, fed, bar)
        return stopwatch.seconds


def _tell(done: Sequenced) -> None:
    if done.rows_before:
        talk(f"chainctl: {done.rows_before:,} rows of {done.source} were in the chain before")
    if done.repeats:
        talk(f"chainctl: {done.repeats:,} rows have keys that were in the chain before")
    if done.orders:
        talk(
            f"chainctl: {rate(done.orders, 'orders', done.seconds)} added to chain {done.chain}, "
            f"ids {done.first_id} to {done.last_id}"
        )
    else:
        talk(f"chainctl: nothing to add to chain {done.chain}")
