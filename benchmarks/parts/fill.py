"""What does a fill cost beside a SELECT from a row per order, and does it grow with the chain?

The batches have 5,000 orders, so the pages are the largest: a fill of a few cuts them out of one.

- ranges: gaps of 1, 100, 1,000 and 20,000 orders anywhere, filled by the shipped reader, and beside
  it a plain SELECT of the same orders from a table with a row per order, on an open connection,
  made into events. The reader checks the start against the database, bounds what it reads in bytes,
  checks every link, and the seal of every batch that it reads whole;
- long: all rows of a long gap. `records`: the SELECT, 5,000 orders at a time, left as the driver's
  records. `events`: the same, made into events. `fill`: the shipped reader;
- flat: a gap of 10,000 rows in chains of 10^5, 10^6 and 10^7 rows. `warm`: the rows have just been
  read, as those of a gap have just been written; `cold`: anywhere in a table, of which the larger
  ones do not fit into the server's memory.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from itertools import starmap
from random import Random
from typing import TYPE_CHECKING, Any, Final

from benchmarks.chains import connected
from benchmarks.parts.generated import SQL, generate_chain, generate_rows
from benchmarks.spreads import compared, interleave, spreads
from gapfill import GapReader, GapReaderConfig
from gapfill.reader import SESSION_SETTINGS
from orderchain.model import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.chains import Site
    from benchmarks.question import Figures
    from orderchain.clients.postgres import Connection
    from orderchain.model import Run

_PAGE_ROWS: Final = 5_000
"""Rows of a SELECT, of what a reader holds at once, and of a batch."""
_LONG_GAP_ROWS: Final = 300_000
_LONG_AFTER_ID: Final = 1_000
_MIDDLE_ROWS: Final = 1_000_000
"""Rows of the chain that is also stored as a row per order."""
_FLAT_GAP_ROWS: Final = 10_000
_RANGES: Final = {1: 1_000, 100: 1_000, 1_000: 500, 20_000: 40}
"""Rows of a gap, and how many gaps of a repeat."""
_WARM_UP_GAPS: Final = 20
"""Statements are prepared by then."""


async def fill(site: Site, *, repeats: int, largest: int) -> Figures:
    """Measure ranges, a long gap, and chains of different length."""
    sizes = sorted({100_000, _MIDDLE_ROWS, largest})
    chains = {rows: await generate_chain(site, rows, batch_rows=_PAGE_ROWS) for rows in sizes}
    middle = chains[_MIDDLE_ROWS]
    await generate_rows(site, middle, _MIDDLE_ROWS)
    return {
        "repeats": repeats,
        "payload_bytes": 100,
        "page_rows": _PAGE_ROWS,
        "long_gap_rows": _LONG_GAP_ROWS,
        "ranges_ms": {
            str(rows): spreads([await _gaps(site, middle, rows, seed) for seed in range(repeats)])
            for rows in _RANGES
        },
        "long": await _long(site, middle, repeats),
        "flat_warm_seconds": await _flat(site, chains, 4 * repeats, is_warm=True),
        "flat_cold_seconds": await _flat(site, chains, 2 * repeats, is_warm=False),
    }


async def _gaps(site: Site, chain_id: int, rows: int, seed: int) -> dict[str, float]:
    """Return the milliseconds of gaps of `rows` rows, filled and plainly read, by turns."""
    random = Random(seed)
    filled, read = [], []
    async with _plainly(site) as connection, _reader(site, chain_id) as reader:
        for turn in range(_RANGES[rows] + _WARM_UP_GAPS):
            after_id = random.randrange(1, _MIDDLE_ROWS - rows)
            gap = await _gap(reader, after_id, rows)
            began = time.perf_counter()
            runs = [run.events async for run in gap]
            between = time.perf_counter()
            events: list[Event] = []
            async for page in _selected(connection, chain_id, after_id, rows):
                events += starmap(Event, page)
            ended = time.perf_counter()
            if [event for run in runs for event in run] != events:
                raise RuntimeError(f"other rows after {after_id}")
            if turn >= _WARM_UP_GAPS:
                filled.append((between - began) * 1e3)
                read.append((ended - between) * 1e3)
    return {
        "fill_p50": statistics.median(filled),
        "select_p50": statistics.median(read),
        "fill_p99": _p99(filled),
        "select_p99": _p99(read),
        "rate_to_select": statistics.median(read) / statistics.median(filled),
    }


async def _long(site: Site, chain_id: int, repeats: int) -> Figures:
    """Compare fill and SELECT over a long gap."""
    figures = await interleave(
        {
            "records": partial(_select_long, site, chain_id, as_events=False),
            "events": partial(_select_long, site, chain_id, as_events=True),
            "fill": partial(_fill, site, chain_id, _LONG_AFTER_ID, _LONG_GAP_ROWS),
        },
        repeats,
    )
    return compared(figures, to_records="records", to_events="events")


async def _flat(site: Site, chains: dict[int, int], repeats: int, *, is_warm: bool) -> Figures:
    """Time the same gap in chains of different length, at places drawn by a seed."""
    random = Random(1)

    async def fill_somewhere(rows: int, chain_id: int) -> float:
        after_id = random.randrange(1, rows - _FLAT_GAP_ROWS)
        if is_warm:
            await _fill(site, chain_id, after_id, _FLAT_GAP_ROWS)
        return _FLAT_GAP_ROWS / await _fill(site, chain_id, after_id, _FLAT_GAP_ROWS)

    arms = {str(rows): partial(fill_somewhere, rows, chain) for rows, chain in chains.items()}
    figures = await interleave(arms, repeats)
    base = str(min(chains))
    found = compared(figures, to_shortest=base)
    for arm in found.values():
        arm["median_to_shortest"] = arm["median"] / found[base]["median"]
    return found


async def _select_long(site: Site, chain_id: int, *, as_events: bool) -> float:
    """Return rows per second of SELECTs from a row per order, one after the other."""
    rows = 0
    async with _plainly(site) as connection:
        began = time.perf_counter()
        async for page in _selected(connection, chain_id, _LONG_AFTER_ID, _LONG_GAP_ROWS):
            rows += len(list(starmap(Event, page)) if as_events else page)
        seconds = time.perf_counter() - began
    return _checked(rows, _LONG_GAP_ROWS) / seconds


async def _fill(site: Site, chain_id: int, after_id: int, rows: int) -> float:
    """Return rows per second of the shipped reader, on a connection that is open."""
    async with _reader(site, chain_id) as reader:
        gap = await _gap(reader, after_id, rows)
        found = 0
        began = time.perf_counter()
        async for run in gap:
            found += len(run.events)
        seconds = time.perf_counter() - began
    return _checked(found, rows) / seconds


async def _gap(reader: GapReader, after_id: int, rows: int) -> AsyncIterator[Run]:
    """Return the runs of a gap, of which nothing is read yet."""
    mark = (await reader.standing(after_id)).mark
    if mark is None:
        raise RuntimeError(f"no row {after_id}")
    return reader.runs(mark, after_id + rows)


async def _selected(
    connection: Connection, chain_id: int, after_id: int, rows: int
) -> AsyncIterator[Any]:
    """Yield the next rows in pages, read as a program would that only wants them."""
    until_id = after_id + rows
    while after_id < until_id:
        page = await connection.fetch(SQL["page"], chain_id, after_id, until_id, _PAGE_ROWS)
        after_id = page[-1][0]
        yield page


def _plainly(site: Site) -> Any:  # noqa: ANN401 - a context manager
    """Connect as the reader does, so that both arms get the same plans."""
    return connected(site.gap_reader, settings=SESSION_SETTINGS)


def _reader(site: Site, chain_id: int) -> GapReader:
    config = GapReaderConfig(
        database=site.gap_reader, chain_id=chain_id, page_rows=_PAGE_ROWS, linger_seconds=5.0
    )
    return GapReader(config)


def _checked(rows: int, expected: int) -> int:
    if rows != expected:
        raise RuntimeError(f"{rows} rows, expected {expected}")
    return rows


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]
