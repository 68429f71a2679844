"""A row per order: a table of the benchmarks' own, and the bytes that COPY takes for it.

An engine with a row of its own for each order stores this, with the columns, the key, the CHECK and
the partitions that it needs for that.
"""

from __future__ import annotations

from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Final

from benchmarks.chains import connect_to, prepare_database
from orderchain.seal import COPY_HEADER, COPY_TRAILER
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from orderchain.model import Event

SQL: Final = load_sql("benchmarks.rivals", "queries.sql")

TABLE: Final = "bare_event"
COLUMNS: Final = ("chain_id", "id", "pid", "key", "event_time_ns", "payload")
"""The columns of the table, in the order of the bytes."""

_PREFIX: Final = Struct(">hiii")
_IDS: Final = Struct(">14sqiqi")
_TIME: Final = Struct(">iqi")


def copy_bytes(chain_id: int, events: Sequence[Event]) -> bytes:
    """Return `events` as one stream of a binary COPY.

    The pieces of all rows are laid out in one list and joined once: per-row concatenation costs
    twice as much.
    """
    prefix = _PREFIX.pack(len(COLUMNS), 4, chain_id, 8)
    keys = [event.key.encode() for event in events]
    payloads = [event.payload for event in events]
    pieces: list[bytes] = [b""] * (4 * len(keys))
    pieces[0::4] = map(
        _IDS.pack,
        repeat(prefix),
        (event.id for event in events),
        repeat(8),
        (event.pid for event in events),
        map(len, keys),
    )
    pieces[1::4] = keys
    times_ns = (event.event_time_ns for event in events)
    pieces[2::4] = map(_TIME.pack, repeat(8), times_ns, map(len, payloads))
    pieces[3::4] = payloads
    return b"".join((COPY_HEADER, *pieces, COPY_TRAILER))


async def make_partition(site: Site, chain_id: int) -> None:
    """Make room for the rows of a chain, and the table where it is not there yet."""
    await prepare_database(site)
    connection = await connect_to(site.admin)
    try:
        await connection.execute(SQL["rows_table"])
        await connection.execute(await connection.fetchval(SQL["rows_partition"], chain_id))
    finally:
        await connection.close()


async def drop_partition(site: Site, chain_id: int) -> None:
    """Remove the rows of a chain."""
    connection = await connect_to(site.admin)
    try:
        await connection.execute(await connection.fetchval(SQL["rows_drop"], chain_id))
    finally:
        await connection.close()
