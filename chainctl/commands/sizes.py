"""`chainctl sizes`: what database, log, topics and archive hold, and how fast they grow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from chain_kernel.errors import InputError, OrderchainError
from chainctl.database import SQL, looking
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import Command, json_option, uses_settings, watch_option
from chainctl.output import data, data_json, repeated, table, talk
from chainctl.units import Size, Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chain_kernel.clients.kafka import AIOKafkaConsumer
    from chainctl.settings import Settings

SizeRow = dict[str, Any]

PARTS: Final = ("database", "log", "topic", "archive")
"""What a bound may be for; a topic and an archive mean all of them together."""

_COLUMNS: Final = {
    "tables": ("table", "parts", "bytes", "index_bytes", "about_rows"),
    "growth": ("chain", "rows", "rows_per_second", "bytes_per_second"),
    "topics": ("topic", "records", "about_bytes", "bytes_per_second"),
    "archives": ("chain", "parts", "bytes", "bytes_per_second"),
}

_SAMPLES: Final = 16
_SAMPLE_RECORDS: Final = 16
"""So many records at so many places of each topic are read: the rest is as long as they are."""

_SAMPLE_MS: Final = 5_000


class Bound(NamedTuple):
    """How many bytes one part may have."""

    part: str
    bytes: int


class _BoundType(Size):
    """`SIZE` for the database, or `PART=SIZE`."""

    name = "bound"

    def convert(  # type: ignore[override] # a bound is more than its size
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Bound:
        """Return the bound that `value` names."""
        part, equals, size = str(value).rpartition("=")
        if equals and part not in PARTS:
            self.fail(f"{part!r} is none of {', '.join(PARTS)}", param, ctx)
        return Bound(part or "database", super().convert(size, param, ctx))


@click.command(cls=Command)
@click.option(
    "--max-bytes", "bounds", type=_BoundType(), multiple=True, metavar="[PART=]SIZE",
    help="Return exit code 1 if PART is larger: database (500GB), log, topic or archive "
    "(log=20GB). May be repeated.",
)  # fmt: skip
@click.option(
    "--over", "over_seconds", type=Span(), default="1h", metavar="SPAN", show_default=True,
    help="Measure the growth over the last SPAN.",
)  # fmt: skip
@click.option(
    "--archive", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Measure this archive, too.",
)  # fmt: skip
@watch_option
@json_option
@uses_settings("database", "kafka", "connect_seconds")
def sizes(
    settings: Settings,
    bounds: tuple[Bound, ...],
    over_seconds: float,
    archive: Path | None,
    watch_seconds: float | None,
    as_json: bool,
) -> ExitCode:
    """Show the size of each table with its indexes, of the log, the topics and an archive, and how
    fast each grows.

    Topics are measured by samples, where --kafka is set. The log's size is shown to members of
    pg_monitor, its growth is that since PostgreSQL began to count.
    """
    wanted = {bound.part for bound in bounds}

    def show() -> ExitCode:
        found = run_async(
            _measured(settings, over_seconds, archive, needs_topics="topic" in wanted)
        )
        if as_json:
            data_json(found)
        else:
            _write(found)
        return _check(found, bounds)

    return repeated(watch_seconds, show)


def _write(found: Mapping[str, Any]) -> None:
    for part, columns in _COLUMNS.items():
        if found[part]:
            table(columns, [tuple(row[column] for column in columns) for row in found[part]])
            data("")
    log = found["log"]
    size = "unknown size" if log["bytes"] is None else f"{log['bytes']:,} bytes"
    data(f"log: {size}, {log['bytes_per_second']:,.0f} bytes per second")
    data(f"database: {found['database_bytes']:,} bytes")


def _check(found: Mapping[str, Any], bounds: Sequence[Bound]) -> ExitCode:
    """Report each part above its bound. Raises InputError where a part could not be measured."""
    code = ExitCode.CLEAN
    sums = {
        "database": found["database_bytes"],
        "log": found["log"]["bytes"],
        "topic": _total(found["topics"], "about_bytes"),
        "archive": _total(found["archives"], "bytes"),
    }
    for part, limit in bounds:
        if (size := sums[part]) is None:
            raise InputError("--max-bytes", part, _NEEDS[part])
        if size > limit:
            talk(f"chainctl: the {part} has {size:,} bytes, above {limit:,}")
            code = ExitCode.FINDINGS
    return code


_NEEDS: Final = {
    "log": "a login that may see the log (GRANT pg_monitor)",
    "topic": "--kafka, whose topics are measured",
    "archive": "--archive DIR beside it",
}


def _total(rows: Sequence[SizeRow] | None, column: str) -> int | None:
    return None if rows is None else sum(row[column] for row in rows)


async def _measured(
    settings: Settings, over_seconds: float, archive: Path | None, *, needs_topics: bool
) -> SizeRow:
    found, chains = await _of_database(settings, over_seconds)
    topics = None
    if settings.kafka:
        try:
            topics = await _of_topics(settings, list(chains.values()), over_seconds)
        except OrderchainError as error:
            if needs_topics:
                raise
            talk(f"chainctl: topics are not measured: {error}")
    archives = None if archive is None else _of_archive(archive, list(chains), over_seconds)
    return {**found, "topics": topics, "archives": archives}


async def _of_database(settings: Settings, over_seconds: float) -> tuple[SizeRow, dict[int, str]]:
    """Return what the database holds, and the topics by their chains."""
    async with looking(settings, None) as connection:
        tables = await connection.fetch(SQL["sizes"])
        growth = [dict(row) for row in await connection.fetch(SQL["growth"], over_seconds)]
        for row in growth:
            # One statement per chain: with the number as a value only its partitions are planned.
            row_bytes = await connection.fetchval(SQL["row_bytes"], row["chain"]) or 0.0
            row["bytes_per_second"] = round(row["rows_per_second"] * row_bytes, 1)
            row["rows_per_second"] = round(row["rows_per_second"], 3)
        database_bytes = await connection.fetchval(SQL["database_bytes"])
        may_see, log_rate = await connection.fetchrow(SQL["log_growth"])
        log_bytes = await connection.fetchval(SQL["log_bytes"]) if may_see else None
        chains = await connection.fetch(SQL["chains"])
    found = {
        "tables": [dict(row) for row in tables],
        "growth": growth,
        "database_bytes": database_bytes,
        "log": {"bytes": log_bytes, "bytes_per_second": round(log_rate, 1)},
    }
    return found, {row["chain_id"]: row["topic"] for row in chains}


async def _of_topics(
    settings: Settings, topics: Sequence[str], over_seconds: float
) -> list[SizeRow]:
    from chain_kernel.clients.kafka import close_client, make_consumer, start_client
    from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, broker_refusal, connecting

    config = settings.kafka_config()
    consumer = make_consumer(config, "sizes")
    try:
        async with connecting(config, settings.connect_seconds):
            await start_client(consumer)
        there = await consumer.topics()
        return [
            await _of_topic(consumer, topic, over_seconds) for topic in topics if topic in there
        ]
    except DRIVER_ERRORS as error:
        raise broker_refusal(error, config) from error
    finally:
        await close_client(consumer, 2.0)


async def _of_topic(consumer: AIOKafkaConsumer, topic: str, over_seconds: float) -> SizeRow:
    from chain_kernel.clients.kafka import TopicPartition

    at = TopicPartition(topic, 0)
    consumer.assign([at])
    begin = (await consumer.beginning_offsets([at]))[at]
    end = (await consumer.end_offsets([at]))[at]
    since_ms = int((time.time() - over_seconds) * 1_000)
    since = (await consumer.offsets_for_times({at: since_ms}))[at]
    new = end - since.offset if since else 0
    record_bytes = await _record_bytes(consumer, at, begin, end)
    return {
        "topic": topic,
        "records": end - begin,
        "about_bytes": round((end - begin) * record_bytes),
        "bytes_per_second": round(new * record_bytes / over_seconds, 1),
    }


async def _record_bytes(consumer: AIOKafkaConsumer, at: Any, begin: int, end: int) -> float:  # noqa: ANN401 - aiokafka has no types
    """Return the mean length of records at places spread over the topic; 0 for an empty one."""
    from chain_kernel.clients.kafka import fetch

    step = max(_SAMPLE_RECORDS, (end - begin) // _SAMPLES)
    lengths: list[int] = []
    for place in range(begin, end, step):
        consumer.seek(at, place)
        found = await fetch(consumer, at, timeout_ms=_SAMPLE_MS, max_records=_SAMPLE_RECORDS)
        lengths += [len(record.value or b"") for record in found.get(at, ())]
    return sum(lengths) / len(lengths) if lengths else 0.0


def _of_archive(archive: Path, chains: Sequence[int], over_seconds: float) -> list[SizeRow]:
    """Return what the archive holds of each chain. Raises InputError for one that holds none."""
    from chain_verifier.archive.manifest import chain_folder, load_manifest

    since = time.time() - over_seconds
    rows = []
    for chain_id in chains:
        manifest = load_manifest(archive, chain_id)
        if manifest is None:
            continue
        folder = chain_folder(archive, chain_id)
        files = [stored for part in manifest.parts for stored in (part.rows, part.batches)]
        new = [each for each in files if (folder / each.name).stat().st_mtime > since]
        rows.append(
            {
                "chain": chain_id,
                "parts": len(manifest.parts),
                "bytes": sum(stored.bytes for stored in files),
                "bytes_per_second": round(sum(each.bytes for each in new) / over_seconds, 1),
            }
        )
    if not rows:
        raise InputError("--archive", str(archive), "an archive of a chain of this database")
    return rows
