"""`chainctl receive`: writes a chain to a journal, in order and without gaps."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from msgspec import Struct

from chainctl.exits import Terminated
from chainctl.options import ROW_ID, Seconds, chain_option, json_option, uses_settings
from chainctl.output import Stopwatch, data_json, progress, rate, talk
from chainctl.running import run_async
from chainctl.wiring import gap_reader, kafka_source_config, runs_of
from orderchain.errors import NotYetReadable, PrimaryBehind, SettingError

if TYPE_CHECKING:
    from chainctl.journal import Journal, PayloadForm
    from chainctl.output import ProgressBar
    from chainctl.settings import Settings
    from gapfill import GapReader
    from matcher_receiver import ReceiverConfig, ReceiverStats
    from orderchain.mark import Mark
    from orderchain.run import Run

IDLE_SECONDS_MAX: Final = 3_600.0
NAME_CHARACTERS_MAX: Final = 200


class Until(Struct, frozen=True, kw_only=True):
    """When to end. Without anything: at the head that the database had at the start."""

    id: int | None = None
    idle_seconds: float | None = None
    follow: bool = False

    @property
    def is_head_at_start(self) -> bool:
        """Whether nothing was said."""
        return self.id is None and self.idle_seconds is None and not self.follow


class _Task(NamedTuple):
    """What is to be received."""

    chain_id: int
    name: str
    until: Until

    def config(self, start: Mark | None) -> ReceiverConfig:
        """Return the receiver's settings."""
        from matcher_receiver import ReceiverConfig

        return ReceiverConfig(
            chain_id=self.chain_id,
            name=self.name,
            start=start,
            until_id=self.until.id,
            to_head_at_start=self.until.is_head_at_start,
            idle_seconds=self.until.idle_seconds,
        )


class Count:
    """What was received so far."""

    def __init__(self) -> None:
        self.rows = 0
        self.first_id: int | None = None
        self.last_id = 0
        self.stopwatch = Stopwatch()

    def start(self, after_id: int) -> None:
        """Begin behind the row `after_id`."""
        self.last_id = after_id
        self.stopwatch = Stopwatch()

    def add(self, run: Run) -> None:
        """Count a run that was written."""
        self.rows += len(run.events)
        if self.first_id is None:
            self.first_id = run.events[0].id
        self.last_id = run.last_id


class Received(Struct, frozen=True, kw_only=True):
    """What `receive` did."""

    chain: int
    journal: str
    rows: int
    """Rows appended by this call."""
    first_id: int | None
    last_id: int
    """Last id in the journal, 0 while it is empty."""
    seconds: float
    stats: Struct
    """The receiver's own counters, a `matcher_receiver.ReceiverStats`."""


@click.command()
@chain_option
@click.option(
    "--output",
    "path",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The journal: JSON Lines. What it holds is not received again.",
)
@click.option("--name", default="receive", metavar="NAME", help="The receiver's name.")
@click.option("--until-id", type=ROW_ID, metavar="ID", help="End behind this id.")
@click.option(
    "--until-idle",
    type=Seconds(IDLE_SECONDS_MAX),
    metavar="SECONDS",
    help="End when nothing came for so long.",
)
@click.option("--follow", is_flag=True, help="Go on until interrupted.")
@click.option(
    "--decode",
    "form",
    type=click.Choice(["base64", "msgpack"]),
    default="base64",
    help="msgpack: write payloads as objects.  [default: base64]",
)
@json_option
@uses_settings("database", "gap_database", "kafka", "connect_seconds")
def command(
    settings: Settings,
    chain_id: int,
    path: Path,
    name: str,
    until_id: int | None,
    until_idle: float | None,
    follow: bool,
    form: PayloadForm,
    as_json: bool,
) -> None:
    """Write a chain to a journal, in order and without gaps.

    Goes on behind the last row of the journal. Without --until-id, --until-idle or --follow it ends
    at the head that the database has at the start.
    """
    from chainctl.journal import Journal

    if follow and (until_id is not None or until_idle is not None):
        raise click.UsageError("--follow goes on until interrupted: leave the other ends out")
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise SettingError("--name", name[:50], f"1 to {NAME_CHARACTERS_MAX} characters")
    until = Until(id=until_id, idle_seconds=until_idle, follow=follow)
    count = Count()
    with Journal(path, chain_id, form) as journal, progress(path.name, None) as bar:
        try:
            stats = run_async(_receive(settings, _Task(chain_id, name, until), journal, count, bar))
        except (KeyboardInterrupt, Terminated):
            _tell(path, count)
            raise
        except Exception as error:
            if count.rows:
                error.add_note(f"rows written before that: {count.rows}")
            raise
    _tell(path, count)
    if as_json:
        data_json(
            Received(
                chain=chain_id,
                journal=str(path),
                rows=count.rows,
                first_id=count.first_id,
                last_id=count.last_id,
                seconds=count.stopwatch.seconds,
                stats=stats,
            )
        )


async def _receive(
    settings: Settings, task: _Task, journal: Journal, count: Count, bar: ProgressBar
) -> ReceiverStats:
    from matcher_receiver import KafkaFrameSource, Receiver

    reader = gap_reader(settings, task.chain_id)
    settings.kafka_servers()
    try:
        head = (await reader.standing(0)).head
        start = await _place(reader, journal)
    except BaseException:
        await reader.close()
        raise
    receiver = Receiver(
        task.config(start), KafkaFrameSource(kafka_source_config(settings, head)), reader
    )
    async with receiver:
        journal.start()
        count.start(0 if start is None else start.id)
        if task.until.follow or task.until.idle_seconds is None:
            bar.expect((task.until.id or receiver.head_at_start) - count.last_id)
        async for run in receiver:
            journal.append(run.events)
            bar.advance(run.last_id - count.last_id)
            count.add(run)
        return receiver.stats()


async def _place(reader: GapReader, journal: Journal) -> Mark | None:
    """Return the place behind the journal's last row; None for a new journal.

    The row is compared with the database's, so that the journal of another database of the same
    chain is not continued. Raises InputError when it is another row, PrimaryBehind when the
    database has not come as far.
    """
    last = journal.last_row
    if last is None:
        return None
    standing = await reader.standing(last.id)
    if standing.mark is None and standing.head.last_id < last.id:
        if not standing.is_primary:
            raise NotYetReadable(standing.head.last_id, last.id)
        raise PrimaryBehind(last.chain_id, standing.head.last_id, last.id)
    before = (await reader.standing(last.pid)).mark
    if standing.mark is None or before is None:
        raise journal.foreign()
    async with aclosing(runs_of(reader, before, last.id)) as runs:
        events = [event async for run in runs for event in run.events]
    journal.check_last(events)
    return standing.mark


def _tell(path: Path, count: Count) -> None:
    written = rate(count.rows, "rows", count.stopwatch.seconds)
    ids = f", ids {count.first_id} to {count.last_id}" if count.rows else ""
    talk(f"chainctl: {written} written to {path}{ids}")
