"""`chainctl fill`: reads missing rows from the database, with the read-only role."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from chainctl.options import ROW_ID, chain_option, uses_settings
from chainctl.output import Stopwatch, data_bytes, rate, talk
from chainctl.running import run_async
from chainctl.wiring import gap_source
from orderchain.errors import NotYetReadable, SettingError

if TYPE_CHECKING:
    from chainctl.journal import PayloadForm
    from chainctl.settings import Settings
    from gapfill import PreferredSources
    from orderchain.model import Mark


@click.command()
@chain_option
@click.option(
    "--after", "after_id", type=ROW_ID, required=True, metavar="ID",
    help="The row before the first one to be read; 0 for the beginning of the chain.",
)  # fmt: skip
@click.option(
    "--until", "until_id", type=ROW_ID, required=True, metavar="ID",
    help="The last row to be read.",
)  # fmt: skip
@click.option(
    "--decode",
    "form",
    type=click.Choice(["base64", "msgpack"]),
    default="base64",
    help="msgpack: write payloads as objects.  [default: base64]",
)
@uses_settings("database", "gap_database", "connect_seconds")
def command(
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
    rows = run_async(_fill(gap_source(settings, chain_id), after_id, until_id, form))
    talk(f"chainctl: {rate(rows, 'row', stopwatch.seconds)} read")


async def _fill(source: PreferredSources, after_id: int, until_id: int, form: PayloadForm) -> int:
    """Write the rows to stdout, and return their number."""
    from chainctl.journal import encode_rows

    rows = 0
    async with source:
        after = await _start(source, after_id, until_id)
        async with aclosing(source.runs(after, until_id)) as runs:
            async for run in runs:
                data_bytes(encode_rows(run.chain_id, run.events, form))
                rows += len(run.events)
    return rows


async def _start(source: PreferredSources, after_id: int, until_id: int) -> Mark:
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
