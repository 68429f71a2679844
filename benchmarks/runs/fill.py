"""The cost of a fill beside a SELECT from a row per order, and how it grows with a chain.

Every repeat of an arm is a process of its own, over chains that are made once.
"""

from __future__ import annotations

import statistics
import time
from itertools import starmap
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from benchmarks.chains import SQL, Site, connected
from benchmarks.load import Arm, Figures, Line, Scope
from benchmarks.processes import RunFailed, call, serve, stand_ready
from benchmarks.rivals.bare import copy_rows
from benchmarks.rivals.engine import filled_chain
from chain_kernel.clients.session import ONE_CHAIN_SETTINGS
from chain_kernel.model import Event
from gapfill import GapReader, GapReaderConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.model import Run

_PAGE_ROWS: Final = 5_000
"""Rows of a SELECT, of what a reader holds at once, and of a batch."""
_MIDDLE_ROWS: Final = 1_000_000
"""Rows of the chain that is also stored as a row per order."""
_REPEATS_MAX: Final = 2
"""A repeat has hundreds of gaps already."""
_WARM_UP_GAPS: Final = 20
"""Statements are prepared by then."""


class Gap(Struct, frozen=True):
    """The rows that one repeat of an arm fills."""

    rows: int
    count: int
    chain_rows: int = _MIDDLE_ROWS
    is_beside_select: bool = True
    is_warm: bool = False
    """The same rows have just been read, as those of a gap have just been written."""


_RANGES: Final = {1: 1_000, 100: 1_000, 1_000: 500, 20_000: 40, 300_000: 1}
"""Rows of a gap, and how many gaps of a repeat."""
_FLAT_ROWS: Final = 10_000
_FLAT_COUNT: Final = 4
LENGTHS: Final = (100_000, _MIDDLE_ROWS, 10_000_000)


def flat_name(length: int, *, is_warm: bool) -> str:
    """Return the name of the arm that fills gaps in a chain of so many rows."""
    return f"{_FLAT_ROWS:,} of {length:,} rows, {'warm' if is_warm else 'cold'}"


def arms(_: Scope) -> list[Arm]:
    """Return ranges beside a SELECT, then the same gap in chains of different length."""
    ranges = {f"{rows:,} orders": Gap(rows, count) for rows, count in _RANGES.items()}
    flat = {
        flat_name(length, is_warm=is_warm): Gap(_FLAT_ROWS, _FLAT_COUNT, length, False, is_warm)
        for is_warm in (True, False)
        for length in LENGTHS
    }
    return [
        Arm(name=name, settings=msgspec.to_builtins(gap), repeats_max=_REPEATS_MAX)
        for name, gap in (ranges | flat).items()
    ]


_copied: Final[set[int]] = set()
"""The chains that are also stored as a row per order."""


async def run(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Fill the gaps of one repeat, at places drawn by its number."""
    gap = msgspec.convert(arm.settings, Gap)
    chain_id = await filled_chain(site, gap.chain_rows, _PAGE_ROWS)
    if gap.is_beside_select and chain_id not in _copied:
        await copy_rows(site, chain_id)
        _copied.add(chain_id)
    seed = sum(line.arm == arm.name for line in earlier)
    async with call(measure, site=site, chain_id=chain_id, gap=gap, seed=seed) as end:
        return await end.result()


async def measure(site: Site, chain_id: int, gap: Gap, seed: int) -> Figures:
    """Fill gaps on a connection that is open, and read each plainly beside it."""
    filled, read = [], []
    places = _places(gap, seed)
    config = GapReaderConfig(
        database=site.gap_reader, chain_id=chain_id, page_rows=_PAGE_ROWS, linger_seconds=5.0
    )
    async with (
        # As the reader connects, so that both get the same plans.
        connected(site.gap_reader, settings=ONE_CHAIN_SETTINGS) as connection,
        GapReader(config) as reader,
    ):
        stand_ready(b"ready")
        for is_counted, after_id in places:
            gap_of = reader, after_id, gap.rows
            if gap.is_warm:
                await _timed_fill(*gap_of)
            seconds, runs = await _timed_fill(*gap_of)
            filled += [seconds * 1e3] if is_counted else []
            if gap.is_beside_select:
                seconds, events = await _timed_select(connection, chain_id, after_id, gap.rows)
                read += [seconds * 1e3] if is_counted else []
                if [event for run in runs for event in run.events] != events:
                    raise RunFailed(f"other rows after {after_id}")
    fill_ms = statistics.median(filled)
    figures = {
        "fill_p50": fill_ms,
        "fill_p99": _p99(filled),
        "rows_per_second": gap.rows / fill_ms * 1e3,
    }
    if not read:
        return figures
    select_ms = statistics.median(read)
    selected = {"select_p50": select_ms, "select_p99": _p99(read)}
    return {**figures, **selected, "rate_to_select": select_ms / fill_ms}


def _places(gap: Gap, seed: int) -> Iterator[tuple[bool, int]]:
    """Yield after which ids the gaps are, each with whether it is counted."""
    random = Random(seed)
    warm_up = min(_WARM_UP_GAPS, gap.count)
    for turn in range(-warm_up, gap.count):
        yield turn >= 0, random.randrange(1, gap.chain_rows - gap.rows - _PAGE_ROWS)


def _p99(values: list[float]) -> float:
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[98]


async def _timed_fill(reader: GapReader, after_id: int, rows: int) -> tuple[float, list[Run]]:
    """Return the seconds of a fill, and its runs. What is before the gap is looked up before."""
    mark = (await reader.standing(after_id)).mark
    if mark is None:
        raise RunFailed(f"no row {after_id}")
    began = time.perf_counter()
    runs = [run async for run in reader.runs(mark, after_id + rows)]
    seconds = time.perf_counter() - began
    if (found := sum(len(run.events) for run in runs)) != rows:
        raise RunFailed(f"{found} rows, expected {rows}")
    return seconds, runs


async def _timed_select(
    connection: Connection, chain_id: int, after_id: int, rows: int
) -> tuple[float, list[Event]]:
    """Return the seconds of SELECTs from a row per order, in pages, and their events."""
    events: list[Event] = []
    began = time.perf_counter()
    while len(events) < rows:
        last_id = events[-1].id if events else after_id
        values = chain_id, last_id, after_id + rows, _PAGE_ROWS
        if not (page := await connection.fetch(SQL["page"], *values)):
            raise RunFailed(f"no row after {last_id}")
        events += starmap(Event, page)
    return time.perf_counter() - began, events


if __name__ == "__main__":
    serve(measure)
