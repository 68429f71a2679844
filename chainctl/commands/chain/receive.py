"""`chainctl receive` and `fill`: write the rows of a chain, in order and without gaps."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import click
from msgspec import Struct

from chain_kernel.errors import (
    NotYetReadable,
    PrimaryBehind,
    RowsArchived,
    SealMismatch,
    SettingError,
)
from chain_kernel.text import counted
from chainctl.commands.stack import demo_option
from chainctl.event_loop import report_ready, run_async
from chainctl.exits import Terminated
from chainctl.monitor_server import http_option, watched
from chainctl.options import ROW_ID, Command, chain_option, json_option, uses_settings
from chainctl.output import Stopwatch, data_bytes, data_json, progress, rate, talk
from chainctl.units import Span

if TYPE_CHECKING:
    from chain_kernel.errors import HaltError
    from chain_kernel.model import Mark, Run
    from chain_kernel.ports import CheckpointStore, GapSource
    from chain_verifier.places import Place
    from chainctl.commands.chain.journal import Journal, PayloadForm
    from chainctl.monitor_server import Address
    from chainctl.output import ProgressBar
    from chainctl.settings import Settings
    from gapfill import PreferredSources
    from matcher_receiver import PostgresHeadReports, Receiver, ReceiverConfig, ReceiverStats


# -- receive --------------------------------------------------------------------------------------

IDLE_SECONDS_MAX: Final = 3_600.0
NAME_CHARACTERS_MAX: Final = 200


_decode_option: Final = click.option(
    "--decode", "form", type=click.Choice(["base64", "msgpack"]), default="base64",
    show_default=True, help="msgpack: write payloads as objects.",
)  # fmt: skip


archive_option: Final = click.option(
    "--archive", "archive_folder", metavar="DIR",
    help="The folder or URL where `chainctl archive` put rows that the database no longer has: "
    "they are read there, and proven by their seals.",
)  # fmt: skip


class _Task(NamedTuple):
    """A chain to receive, and the end: without `until_id`, `idle_seconds` and `follow` it is the
    head that the database has at the start.
    """

    chain_id: int
    name: str
    is_named: bool
    """True if the caller gave the name: then the receiver is meant to last."""
    until_id: int | None
    idle_seconds: float | None
    follow: bool
    archive: Place | None

    def config(self, settings: Settings, start: Mark | None) -> ReceiverConfig:
        """Return the receiver's settings. Raises SettingError."""
        from matcher_receiver import ReceiverConfig, ReceiverTuning

        has_end = self.until_id is not None or self.idle_seconds is not None or self.follow
        return ReceiverConfig(
            chain_id=self.chain_id,
            name=self.name,
            gap_databases=settings.gap_dsns(),
            kafka=settings.broker(),
            start=start,
            until=self.until_id if has_end else "head",
            idle_seconds=self.idle_seconds,
            tuning=ReceiverTuning(
                connect_seconds=settings.connect_seconds, kafka_at_start=settings.kafka_at_start
            ),
        )


class Count:
    """The rows received so far."""

    def __init__(self) -> None:
        self.rows = 0
        self.first_id: int | None = None
        self.last_id = 0
        self.stopwatch = Stopwatch()
        self.stats: ReceiverStats | None = None
        """The receiver's own, at its end; None while it has not started."""

    def start(self, after_id: int) -> None:
        """Begin after the row `after_id`."""
        self.last_id = after_id
        self.stopwatch = Stopwatch()

    def add(self, run: Run) -> None:
        """Count a run that was written."""
        self.rows += len(run.events)
        if self.first_id is None:
            self.first_id = run.events[0].id
        self.last_id = run.last_id


class ReceiveReport(Struct, frozen=True, kw_only=True):
    """The result of `receive`."""

    chain: int
    journal: str
    rows: int
    """Rows appended by this call."""
    first_id: int | None
    last_id: int
    """Last id in the journal, 0 while it is empty."""
    seconds: float
    stats: object
    """The receiver's own counters, a `matcher_receiver.ReceiverStats`."""


@click.command(cls=Command)
@chain_option
@click.option(
    "--output", "path", required=True, metavar="FILE", type=click.Path(path_type=Path),
    help="The journal: JSON Lines. What it holds is not received again.",
)  # fmt: skip
@click.option(
    "--name", metavar="NAME",
    help="The receiver's name, under which --database keeps its gaps and halts, and how far it "
    "has come.  [default: the name of FILE, and how far it has come is not kept]",
)  # fmt: skip
@click.option("--until", "until_id", type=ROW_ID, metavar="ID", help="Stop after this id.")
@click.option(
    "--until-idle", type=Span(IDLE_SECONDS_MAX), metavar="SPAN",
    help="End when nothing has come for SPAN (30s, 5m).",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Receive until interrupted.")
@_decode_option
@archive_option
@http_option
@demo_option
@json_option
@uses_settings(
    "database", "gap_database", "kafka", "kafka_at_start", "connect_seconds", "log_format"
)
def receive(
    settings: Settings,
    chain_id: int,
    path: Path,
    name: str | None,
    until_id: int | None,
    until_idle: float | None,
    follow: bool,
    form: PayloadForm,
    archive_folder: str | None,
    http: Address | None,
    as_json: bool,
) -> None:
    """Write a chain to a journal, in order and without gaps.

    Goes on after the last row of the journal. Without --until, --until-idle or --follow it ends
    at the head that the database has at the start. Missing rows are read from the --gap-database,
    several of them in the order given: standbys first, the primary last. What was archived and is
    in the database no more is read from --archive.
    """
    from chain_verifier.places import place_of
    from chainctl.commands.chain.journal import Journal

    archive = None if archive_folder is None else place_of("--archive", archive_folder)
    if follow and (until_id is not None or until_idle is not None):
        raise click.UsageError("--follow goes on until interrupted: leave the other ends out")
    task = _Task(
        chain_id=chain_id,
        name=_name_of(name, path),
        is_named=name is not None,
        until_id=until_id,
        idle_seconds=until_idle,
        follow=follow,
        archive=archive,
    )
    count = Count()
    with Journal(path, chain_id, form) as journal, progress(path.name, None) as bar:
        try:
            run_async(_receive(settings, task, journal, count, bar, http))
        except (KeyboardInterrupt, Terminated):
            _report(chain_id, path, count, as_json=as_json)
            raise
        except Exception as error:
            if isinstance(error, RowsArchived) and archive is None:
                error.add_note("--archive DIR reads them from an archive")
            if count.rows:
                error.add_note(f"{counted(count.rows, 'row')} written before that")
            raise
    _report(chain_id, path, count, as_json=as_json)


def _name_of(name: str | None, path: Path) -> str:
    """Return the receiver's name. Raises SettingError for one that is no name."""
    if name is None:
        return _utf8(path.name)[:NAME_CHARACTERS_MAX] or "receive"
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        expected = f"1 to {NAME_CHARACTERS_MAX} printable characters"
        raise SettingError("--name", name[:50], expected)
    return name


def _utf8(path: str) -> str:
    """Return a path with its bytes that are no UTF-8 escaped: neither JSON nor a database has any
    other.
    """
    return path.encode(errors="backslashreplace").decode()


async def _receive(
    settings: Settings,
    task: _Task,
    journal: Journal,
    count: Count,
    bar: ProgressBar,
    http: Address | None,
) -> None:
    async with watched(http) as watch:
        source: GapSource = gap_source(settings, task.chain_id)
        if task.archive is not None:
            source = with_archive(source, task.archive, task.chain_id)
        settings.broker()
        reports = head_reports(settings, task.chain_id, task.name, is_lasting=task.is_named)
        receiver = await _receiver(settings, task, journal, source, reports)
        watch.add(receiver)
        async with receiver:
            try:
                await _write(task, receiver, journal, count, bar, keeps_place=reports is not None)
            finally:
                count.stats = receiver.stats()


async def _write(
    task: _Task,
    receiver: Receiver,
    journal: Journal,
    count: Count,
    bar: ProgressBar,
    *,
    keeps_place: bool,
) -> None:
    journal.start()
    report_ready(f"receives chain {task.chain_id}")
    count.start(receiver.head_delivered)
    if task.follow or task.idle_seconds is None:
        bar.expect((task.until_id or receiver.head_at_start) - count.last_id)
    async for run in receiver:
        journal.append(run.events)
        bar.advance(run.last_id - count.last_id)
        count.add(run)
        if keeps_place:
            await receiver.checkpoint(run)


async def _receiver(
    settings: Settings,
    task: _Task,
    journal: Journal,
    source: GapSource,
    reports: CheckpointStore | None,
) -> Receiver:
    """Return the receiver that continues after the journal; it closes what it is given."""
    from matcher_receiver import ChainFrames, Receiver

    try:
        start = await _place(source, journal, reports)
        config = task.config(settings, start)
        return Receiver(config, ChainFrames(config, source), source, reports)
    except BaseException:
        await source.close()
        if reports is not None:
            await reports.close()
        raise


async def _place(
    source: GapSource, journal: Journal, reports: CheckpointStore | None
) -> Mark | None:
    """Return the place after the journal's last row; None for a new journal.

    The row is compared with the database's, so that the journal of another database of the same
    chain is not continued. A journal holds no seals: the one that was reported last is compared,
    since the next report replaces it. Raises InputError when it is another row; PrimaryBehind when
    the database is behind the journal and SealMismatch when seals differ: halts, which are stored.
    """
    reported = None if reports is None else await reports.load()
    last = journal.last_row
    if last is None:
        return None
    standing = await source.standing(last.id)
    if standing.mark is None and standing.head.last_id < last.id:
        if not standing.is_primary:
            raise NotYetReadable(standing.head.last_id, last.id)
        behind = PrimaryBehind(last.chain_id, standing.head.last_id, last.id)
        await _halt(reports, behind, last.id)
    before = (await source.standing(last.pid)).mark
    if standing.mark is None or before is None:
        raise journal.foreign()
    async with aclosing(source.runs(before, last.id)) as runs:
        events = [event async for run in runs for event in run.events]
    journal.check_last(events)
    if reported is not None and reported.id <= last.id:
        found = await source.standing(reported.id, reported.batch_last_id)
        seal = found.batch_seal or reported.seal  # none where the batch was archived
        if found.is_primary and seal != reported.seal:
            differs = SealMismatch(last.chain_id, reported.batch_last_id, reported.seal, seal)
            await _halt(reports, differs, reported.id)
    return standing.mark


async def _halt(reports: CheckpointStore | None, error: HaltError, at_id: int) -> NoReturn:
    """Store the halt where there is a place for it, and raise `error`."""
    from matcher_receiver.checkpoint import store_halt

    if reports is not None:
        await store_halt(reports, error, at_id)
    raise error


def _report(chain_id: int, path: Path, count: Count, *, as_json: bool) -> None:
    written = rate(count.rows, "row", count.stopwatch.seconds)
    ids = f", ids {count.first_id} to {count.last_id}" if count.rows else ""
    talk(f"chainctl: {written} written to {path}{ids}")
    if as_json and count.stats is not None:
        done = ReceiveReport(
            chain=chain_id,
            journal=_utf8(str(path)),
            rows=count.rows,
            first_id=count.first_id,
            last_id=count.last_id,
            seconds=count.stopwatch.seconds,
            stats=count.stats,
        )
        data_json(done)


# -- fill -----------------------------------------------------------------------------------------


@click.command(cls=Command)
@chain_option
@click.option(
    "--after", "after_id", type=ROW_ID, required=True, metavar="ID",
    help="The row before the first one to be read; 0 for the beginning of the chain.",
)  # fmt: skip
@click.option(
    "--until", "until_id", type=ROW_ID, required=True, metavar="ID",
    help="The last row to be read.",
)  # fmt: skip
@_decode_option
@uses_settings("database", "gap_database", "connect_seconds")
def fill(
    settings: Settings, chain_id: int, after_id: int, until_id: int, form: PayloadForm
) -> None:
    """Write the rows after ID up to and including ID to stdout, as JSON Lines.

    The rows are linked, from the first to the last one: where one is missing, what is before it is
    written, and the exit code is 3. With several --gap-database, the first one that has a row
    gives it: the standbys, each for 2 seconds at most, and then the last one, the primary.
    """
    if until_id < after_id:
        raise SettingError("--until", until_id, f"an id of at least --after, {after_id}")
    stopwatch = Stopwatch()
    rows = run_async(_write_rows(gap_source(settings, chain_id), after_id, until_id, form))
    talk(f"chainctl: {rate(rows, 'row', stopwatch.seconds)} read")


async def _write_rows(
    source: PreferredSources, after_id: int, until_id: int, form: PayloadForm
) -> int:
    from chainctl.commands.chain.journal import encode_rows

    rows = 0
    async with source:
        after = await _start_of(source, after_id, until_id)
        async with aclosing(source.runs(after, until_id)) as runs:
            async for run in runs:
                data_bytes(encode_rows(run.chain_id, run.events, form))
                rows += len(run.events)
    return rows


async def _start_of(source: PreferredSources, after_id: int, until_id: int) -> Mark:
    """Return the place after the row `after_id`. Raises SettingError where an id is of no row."""
    standing = await source.standing(after_id)
    head_id = standing.head.last_id
    if until_id > head_id:
        if not standing.is_primary:
            raise NotYetReadable(head_id, until_id)
        raise SettingError("--until", until_id, f"an id up to the head of the chain, {head_id}")
    if standing.mark is None:
        raise SettingError("--after", after_id, "the id of a row of the chain, or 0")
    if 0 < until_id < head_id:
        end = await source.standing(until_id)
        if end.is_primary and end.mark is None:
            # Ids skip: a skipped id would look like a missing row. The head is surely a row.
            last_id = await source.row_at_or_before(until_id)
            expected = f"the id of a row of the chain (the last one before it is {last_id})"
            raise SettingError("--until", until_id, expected)
    return standing.mark


# -- sources of rows ------------------------------------------------------------------------------


def gap_source(settings: Settings, chain_id: int) -> PreferredSources:
    """Return what reads `chain_id` with the read-only role: standbys first, the primary last.

    Raises SettingError.
    """
    from gapfill import GapReaderConfig, PreferredSources

    *standbys, primary = settings.gap_dsns()
    config = GapReaderConfig(
        database=primary,
        chain_id=chain_id,
        connect_seconds=settings.connect_seconds,
    )
    return PreferredSources.of_databases(config, standbys)


def with_archive(databases: GapSource, archive: Place, chain_id: int) -> GapSource:
    """Return what reads from the archive what the `databases` have dropped."""
    # Imported only here: an archive needs pyarrow, which nothing else in a receiver needs.
    from chain_verifier.archive.archived_rows import ArchivedRows
    from chain_verifier.archive.backed_source import ArchiveBackedSource

    return ArchiveBackedSource(databases, ArchivedRows(archive, chain_id))


def head_reports(
    settings: Settings, chain_id: int, name: str, *, is_lasting: bool
) -> PostgresHeadReports | None:
    """Return what reports to `database` on a receiver that keeps its own place; None without one.

    Only one that is to last reports how far it has come: otherwise, an export made once would keep
    old rows from being archived forever. Raises SettingError where it cannot.
    """
    from matcher_receiver import CheckpointConfig, PostgresHeadReports

    if not settings.database and not is_lasting:
        return None
    config = CheckpointConfig(
        database=settings.database_dsn(),
        chain_id=chain_id,
        name=name,
        connect_seconds=settings.connect_seconds,
    )
    return PostgresHeadReports(config, reports_head=is_lasting)
