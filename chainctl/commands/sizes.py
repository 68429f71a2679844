"""`chainctl sizes`: what the database and its log hold, and how fast they grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from chainctl.database import SQL, looking
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import Command, json_option, uses_settings
from chainctl.output import data, data_json, talk
from chainctl.units import Size, Span
from chainctl.views import write

if TYPE_CHECKING:
    from chainctl.settings import Settings

_TABLES: Final = ("table", "parts", "bytes", "index_bytes", "about_rows")
_GROWTH: Final = ("chain", "rows", "rows_per_second", "bytes_per_second")


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
@uses_settings("database", "connect_seconds")
def sizes(
    settings: Settings, max_bytes: int | None, over_seconds: float, as_json: bool
) -> ExitCode:
    """Show the size of each table with its indexes, and of the log, and how fast each grows.

    The log's size is shown to members of pg_monitor, its growth is that since PostgreSQL began to
    count.
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
    return {
        "tables": [dict(row) for row in tables],
        "growth": growth,
        "database_bytes": database_bytes,
        "log": {"bytes": log_bytes, "bytes_per_second": round(log_rate, 1)},
    }
