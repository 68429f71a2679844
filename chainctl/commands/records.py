"""`chainctl tail`, `show`, `rejects` and `acts`: what is stored, without SQL."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click
import msgspec

from chain_kernel.clock import record_time
from chain_kernel.errors import FrameError, OrderchainError, SettingError
from chain_kernel.files import LINE_BYTES_MAX, open_regular
from chain_kernel.text import counted, printable, reason_of
from chainctl.database import SQL, looking, utc
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import (
    ROW_ID,
    Command,
    Integer,
    chain_option,
    json_option,
    limit_option,
    since_option,
    uses_settings,
    watch_option,
)
from chainctl.output import data, data_json, repeated, table, talk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from chain_kernel.clients.kafka import ConsumerRecord
    from chainctl.settings import Settings

ShownRow = dict[str, object]

_ROWS_OF_TAIL: Final = 10
_PAYLOAD_CHARACTERS: Final = 60
"""How much of a payload a table shows; JSON has all of it."""

# -- tail -----------------------------------------------------------------------------------------

_TAIL_COLUMNS: Final = ("id", "pid", "key", "time", "payload")


@click.command(cls=Command)
@chain_option
@click.option(
    "--after", "after_id", type=ROW_ID, default=0, metavar="ID", help="Only rows after ID."
)
@click.option(
    "--limit", type=Integer(1, 10_000), default=_ROWS_OF_TAIL, metavar="COUNT", show_default=True,
    help="Show the last COUNT orders.",
)  # fmt: skip
@watch_option
@json_option
@uses_settings("database", "connect_seconds")
def tail(
    settings: Settings,
    chain_id: int,
    after_id: int,
    limit: int,
    watch_seconds: float | None,
    as_json: bool,
) -> None:
    """Show the last orders of a chain, in their order."""

    def show_last() -> None:
        rows = run_async(_fetch(settings, chain_id, "last_rows", after_id, limit))[::-1]
        _write(_TAIL_COLUMNS, [_order(row) for row in rows], as_json=as_json)

    repeated(watch_seconds, show_last)


def _order(row: Mapping[str, Any]) -> ShownRow:
    time = datetime.fromtimestamp(row["event_time_ns"] / 1e9, UTC)
    return {
        "id": row["id"],
        "pid": row["pid"],
        "key": row["key"],
        "time": utc(time),
        "payload": row["payload"],
    }


# -- rejects, acts --------------------------------------------------------------------------------


@click.command(cls=Command)
@chain_option
@click.option("--source", metavar="NAME", help="Only those of this intake.")
@since_option
@limit_option
@watch_option
@json_option
@uses_settings("database", "connect_seconds")
def rejects(
    settings: Settings,
    chain_id: int,
    source: str | None,
    since_seconds: float | None,
    limit: int,
    watch_seconds: float | None,
    as_json: bool,
) -> None:
    """Show the records of intakes that became no order, and why; the last first.

    The record itself is in its source, at its position.
    """

    def show_rejects() -> None:
        found = run_async(_fetch(settings, chain_id, "rejects", source, since_seconds, limit))
        columns = ("rejected_at", "source", "position", "key", "reason")
        _write(columns, [_plain(row) for row in found], as_json=as_json)

    repeated(watch_seconds, show_rejects)


@click.command(cls=Command)
@chain_option
@since_option
@limit_option
@watch_option
@json_option
@uses_settings("database", "connect_seconds")
def acts(
    settings: Settings,
    chain_id: int,
    since_seconds: float | None,
    limit: int,
    watch_seconds: float | None,
    as_json: bool,
) -> None:
    """Show what people did to a chain by hand, and why; the last first."""

    def show_acts() -> None:
        found = run_async(_fetch(settings, chain_id, "acts", since_seconds, limit))
        columns = ("act_id", "acted_at", "act", "receiver", "actor", "login", "reason", "detail")
        _write(columns, [_plain(row) for row in found], as_json=as_json)

    repeated(watch_seconds, show_acts)


# -- show -----------------------------------------------------------------------------------------

_FRAMES_SECONDS: Final = 15.0
"""How long the topic is searched for a frame."""

_BEFORE_COMMIT_MS: Final = 60_000
"""Brokers stamp frames by the publisher's clock: the search begins a minute before the commit."""

_RECORDS_READ_MAX: Final = 100_000

_FETCH_MS: Final = 500
"""How long one request for a record may take before it is repeated."""


@click.command(cls=Command)
@chain_option
@click.argument("row_id", type=ROW_ID, metavar="ID")
@click.option("--journal", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Look for the row in this journal, too.")  # fmt: skip
@click.option("--archive", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Look for the row in this archive, too.")  # fmt: skip
@click.option("--no-topic", is_flag=True, help="Do not search the topic for its frames.")
@watch_option
@json_option
@uses_settings("database", "kafka", "connect_seconds")
def show(
    settings: Settings,
    chain_id: int,
    row_id: int,
    journal: Path | None,
    archive: Path | None,
    no_topic: bool,
    watch_seconds: float | None,
    as_json: bool,
) -> ExitCode:
    """Show one order: its row, its batch with the seal, who led, its frames in the topic, the
    verification that covers it, the gaps that receivers had there.

    Exit code 1 when the database has no row of this id.
    """

    def show_it() -> ExitCode:
        found = run_async(_show(settings, chain_id, row_id))
        is_there = found["row"] is not None
        if not no_topic and found["batch"] is not None:
            found["frames"] = run_async(_frames(settings, chain_id, row_id, found["batch"]))
        if journal is not None:
            found["journal"] = find_in_journal(journal, row_id)
        if archive is not None:
            found["archive"] = _find_in_archive(archive, chain_id, row_id)
        if as_json:
            data_json(found)
        else:
            _write_parts(found)
        if not is_there:
            talk(f"chainctl: chain {chain_id} {_why_not_there(found, row_id)}")
        return ExitCode.CLEAN if is_there else ExitCode.FINDINGS

    return repeated(watch_seconds, show_it)


def _why_not_there(found: Mapping[str, Any], row_id: int) -> str:
    batch, near = found["batch"], found["neighbours"]
    if row_id <= found["archived_until"]:
        where = f"rows up to {found['archived_until']} are in the archive alone (--archive DIR)"
        return f"has no row {row_id}: {where}"
    text = (
        f"has no row {row_id}; the row before is {near['before'] or 'none'}, "
        f"the row after {near['after'] or 'none'}"
    )
    if batch is None or batch["stored_rows"] == batch["row_count"]:
        return text
    stored = f"{batch['stored_rows']:,} of the {counted(batch['row_count'], 'row')} of its batch"
    return f"{text}; {stored} are stored: verify the chain"


async def _show(settings: Settings, chain_id: int, row_id: int) -> dict[str, Any]:
    async with looking(settings, chain_id) as connection:
        row = await connection.fetchrow(SQL["order_row"], chain_id, row_id)
        batch = await connection.fetchrow(SQL["batch_around"], chain_id, row_id)
        near = await connection.fetchrow(SQL["neighbours"], chain_id, row_id)
        archived_until = await connection.fetchval(SQL["archived_until"], chain_id)
        verified = await connection.fetchrow(SQL["verified_over"], chain_id, row_id)
        chain = await connection.fetchrow(SQL["chain_status"], chain_id)
        skips = await connection.fetch(SQL["skips_over"], chain_id, row_id)
        gap_rows = await connection.fetch(SQL["gaps_over"], chain_id, row_id)
    is_covered = batch is not None and batch["first_id"] <= row_id <= batch["last_id"]
    return {
        "row": _order(row) if row else None,
        "neighbours": dict(near),
        "batch": {**_plain(batch), "topic": chain["topic"]} if is_covered else None,
        "archived_until": archived_until,
        "published": row_id <= chain["published_id"],
        "verified": _plain(verified) if verified and verified["after_id"] < row_id else None,
        "skipped": [_plain(skip) for skip in skips],
        "gaps": [_plain(gap) for gap in gap_rows],
    }


async def _frames(
    settings: Settings, chain_id: int, row_id: int, batch: Mapping[str, Any]
) -> list[ShownRow] | str:
    """Return the frames that hold the row, or why the topic could not be searched."""
    import asyncio

    if not settings.kafka:
        return "no --kafka is set"
    committed = datetime.fromisoformat(batch["committed_at"])
    since_ms = int(committed.timestamp() * 1_000) - _BEFORE_COMMIT_MS
    try:
        async with asyncio.timeout(_FRAMES_SECONDS):
            return [
                frame
                async for frame in _frames_of(settings, batch["topic"], since_ms, chain_id, row_id)
            ]
    except TimeoutError:
        return f"not found within {_FRAMES_SECONDS:g} s"
    except OrderchainError as error:
        return str(error)


async def _frames_of(
    settings: Settings, topic: str, since_ms: int, chain_id: int, row_id: int
) -> AsyncIterator[ShownRow]:
    """Yield the frames of the topic that hold the row, from a time on to the topic's end."""
    from chain_kernel.clients.kafka import (
        TopicPartition,
        close_client,
        fetch,
        make_consumer,
        start_client,
    )
    from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, connecting, reading_error

    config = settings.kafka_config()
    consumer = make_consumer(config, "show")
    try:
        async with connecting(config, settings.connect_seconds):
            await start_client(consumer)
        at = TopicPartition(topic, 0)
        consumer.assign([at])
        end = (await consumer.end_offsets([at]))[at]
        place = (await consumer.offsets_for_times({at: since_ms}))[at]
        if place is None:
            return
        consumer.seek(at, place.offset)
        for _ in range(_RECORDS_READ_MAX):
            if await consumer.position(at) >= end:
                return
            found = await fetch(consumer, at, timeout_ms=_FETCH_MS, max_records=1)
            for record in found.get(at, ()):
                if frame := _frame_of(record, chain_id, row_id):
                    yield frame
    except DRIVER_ERRORS as error:
        raise reading_error(error, config, f"read topic {topic}") from error
    finally:
        await close_client(consumer, 2.0)


def _frame_of(record: ConsumerRecord, chain_id: int, row_id: int) -> ShownRow | None:
    """Return what to show of a record that is a frame with the row, None of any other."""
    from chain_kernel.frame import decode_header

    try:
        header = decode_header(record.value)
    except FrameError:
        return None
    is_other = header.chain_id != chain_id or not header.first_id <= row_id <= header.last_id
    if is_other or header.is_heartbeat:
        return None
    return {
        "offset": record.offset,
        "time": utc(record_time(record.timestamp)),
        "first_id": header.first_id,
        "last_id": header.last_id,
        "rows": header.count,
        "epoch": header.epoch,
        "publisher_epoch": header.publisher_epoch,
    }


def find_in_journal(path: Path, row_id: int) -> ShownRow | None:
    """Return the line of a journal that holds the row, and where it begins; None if none does.

    Ids rise along a journal, so it is searched by halves. Raises SettingError where the file cannot
    be read, or is no journal.
    """
    from chain_kernel.files import JournalRow

    try:
        with open_regular(path) as file:
            low, high = 0, path.stat().st_size
            while low < high:
                middle = (low + high) // 2
                begin, line = _line_from(file, middle, low)
                if begin >= high or not line.endswith(b"\n"):
                    high = middle  # no whole line begins between
                    continue
                row = msgspec.json.decode(line, type=JournalRow)
                if row.id == row_id:
                    return {"at_byte": begin, "id": row.id, "pid": row.pid, "key": row.key}
                low, high = (begin + len(line), high) if row.id < row_id else (low, middle)
    except OSError as error:
        raise SettingError("--journal", path, f"a file to read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise SettingError("--journal", path, f"a journal ({reason_of(error)})") from error
    return None


def _line_from(file: BinaryIO, at: int, low: int) -> tuple[int, bytes]:
    """Return the first line that begins at or after the byte `at`; `low` is where a line begins."""
    file.seek(at)
    if at > low:
        file.seek(at - 1)
        file.readline(LINE_BYTES_MAX)  # the rest of a line that began before, or its line break
    begin, line = file.tell(), file.readline(LINE_BYTES_MAX)
    if len(line) == LINE_BYTES_MAX:
        raise ValueError(f"a line has more than {LINE_BYTES_MAX} bytes")
    return begin, line


def _find_in_archive(archive: Path, chain_id: int, row_id: int) -> ShownRow | None:
    """Return the part of the archive whose range holds the row; None if none does."""
    from chain_verifier.archive.manifest import load_manifest

    manifest = load_manifest(archive, chain_id)
    if manifest is None:
        raise SettingError("--archive", archive, f"an archive of chain {chain_id}")
    for part in manifest.parts:
        if part.after_id < row_id <= part.last_id:
            return {"file": part.rows.name, "after_id": part.after_id, "last_id": part.last_id}
    return None


# -- common ---------------------------------------------------------------------------------------


async def _fetch(
    settings: Settings, chain_id: int, statement: str, *values: object
) -> list[Mapping[str, Any]]:
    async with looking(settings, chain_id) as connection:
        rows: list[Mapping[str, Any]] = await connection.fetch(SQL[statement], chain_id, *values)
    return rows


def _plain(row: Mapping[str, Any]) -> ShownRow:
    """Return a row with times and seals as text."""
    return {name: _shown(value) for name, value in row.items()}


def _shown(value: object) -> object:
    if isinstance(value, datetime):
        return utc(value)
    return value.hex() if isinstance(value, bytes) else value


def _write(columns: Sequence[str], rows: Sequence[ShownRow], *, as_json: bool = False) -> None:
    if as_json:
        data_json(rows)
        return
    table(columns, [tuple(_cut(row[column]) for column in columns) for row in rows])


def _cut(value: object) -> object:
    """Return a payload as it fits a table: as text, where it is text."""
    if not isinstance(value, bytes):
        return value
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = base64.b64encode(value).decode()
    return printable(text, _PAYLOAD_CHARACTERS)


def _write_parts(found: Mapping[str, Any]) -> None:
    for part, value in found.items():
        if isinstance(value, list) and value:
            data(part)
            table(list(value[0]), [tuple(_cut(cell) for cell in row.values()) for row in value])
        elif isinstance(value, dict):
            data(part)
            table(("what", "value"), [(name, _cut(cell)) for name, cell in value.items()])
        elif isinstance(value, bool):
            data(f"{part}: {'yes' if value else 'no'}")
        else:
            data(f"{part}: {value or 'none'}")
        data("")
