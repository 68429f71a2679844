"""`chainctl sizes`: the sizes of the database, its log and the topics, and their growth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from chain_kernel.errors import OrderchainError
from chainctl.database import SQL, looking
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import Command, json_option, uses_settings
from chainctl.output import data, data_json, talk
from chainctl.units import Size, Span
from chainctl.views import write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.clients.kafka import AIOKafkaConsumer, TopicPartition
    from chainctl.settings import Settings

_TABLES: Final = ("table", "parts", "bytes", "index_bytes", "about_rows")
_GROWTH: Final = ("chain", "rows", "rows_per_second", "bytes_per_second")
_TOPICS: Final = ("topic", "records", "about_bytes")

_SAMPLES: Final = 16
_SAMPLE_RECORDS: Final = 16
"""Some records at some places of each topic are read: the rest is as long as they are."""

_SAMPLE_MS: Final = 5_000
_CLOSE_SECONDS: Final = 2.0


@click.command(cls=Command)
@click.option(
    "--max-bytes", type=Size(), metavar="SIZE",
    help="Return exit code 1 if the database is larger (500GB).",
)  # fmt: skip
@click.option(
    "--over", "over_seconds", type=Span(), default="1h", metavar="SPAN", show_default=True,
    help="Measure the growth over the last SPAN.",
)  # fmt: skip
@json_option
@uses_settings("database", "kafka", "connect_seconds")
def sizes(
    settings: Settings, max_bytes: int | None, over_seconds: float, as_json: bool
) -> ExitCode:
    """Show the size of each table with its indexes, of the log and the topics, and how fast tables
    and log grow.

    Topics are measured by samples, where --kafka is set. The log's size is shown to members of
    pg_monitor, its growth is that since PostgreSQL began to count.
    """
    found = run_async(_measured(settings, over_seconds))
    size = found["database_bytes"]
    if as_json:
        data_json(found)
    else:
        write(_TABLES, found["tables"])
        data("")
        if found["growth"]:
            write(_GROWTH, found["growth"])
            data("")
        if found["topics"]:
            write(_TOPICS, found["topics"])
            data("")
        log = found["log"]
        log_size = "unknown size" if log["bytes"] is None else f"{log['bytes']:,} bytes"
        data(f"log: {log_size}, {log['bytes_per_second']:,.0f} bytes per second")
        data(f"database: {size:,} bytes")
    if max_bytes is None or size <= max_bytes:
        return ExitCode.CLEAN
    talk(f"chainctl: the database has {size:,} bytes, above {max_bytes:,}")
    return ExitCode.FINDINGS


async def _measured(settings: Settings, over_seconds: float) -> dict[str, Any]:
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
        topics = [row["topic"] for row in await connection.fetch(SQL["chains"])]
    return {
        "tables": [dict(row) for row in tables],
        "growth": growth,
        "topics": await _topics_measured(settings, topics) if settings.kafka else [],
        "database_bytes": database_bytes,
        "log": {"bytes": log_bytes, "bytes_per_second": round(log_rate, 1)},
    }


async def _topics_measured(settings: Settings, topics: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the broker holds of each topic that is there; of none where it does not answer.

    Says why then: the database is shown all the same.
    """
    from chain_kernel.clients.kafka import TopicPartition, close_client, make_consumer, start_client
    from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, broker_refusal, connecting

    config = settings.kafka_config()
    consumer = make_consumer(config, "sizes")
    try:
        async with connecting(config, settings.connect_seconds):
            await start_client(consumer)
        there = await consumer.topics()
        return [
            await _topic_measured(consumer, TopicPartition(topic, 0))
            for topic in topics
            if topic in there
        ]
    except (OrderchainError, *DRIVER_ERRORS) as error:
        is_ours = isinstance(error, OrderchainError)
        reason = error if is_ours else broker_refusal(error, config, doing="read the topics")
        talk(f"chainctl: topics are not measured: {reason}")
        return []
    finally:
        await close_client(consumer, _CLOSE_SECONDS)


async def _topic_measured(consumer: AIOKafkaConsumer, at: TopicPartition) -> dict[str, Any]:
    consumer.assign([at])
    begin = (await consumer.beginning_offsets([at]))[at]
    end = (await consumer.end_offsets([at]))[at]
    lengths: list[int] = []
    for place in range(begin, end, max(_SAMPLE_RECORDS, (end - begin) // _SAMPLES)):
        consumer.seek(at, place)
        found = await consumer.getmany(at, timeout_ms=_SAMPLE_MS, max_records=_SAMPLE_RECORDS)
        lengths += [len(record.value or b"") for record in found.get(at, ())]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    return {"topic": at.topic, "records": end - begin, "about_bytes": round((end - begin) * mean)}
