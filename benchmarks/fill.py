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

    python -m benchmarks.fill [--repeats 7] [--largest 10000000]
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import starmap
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
import uvloop

from benchmarks.arms import interleave, ratio, spread
from benchmarks.chains import Site, benchmark_stack, connect_to, open_site
from benchmarks.generated import SQL, generate_chain, generate_rows
from benchmarks.host import RESULTS, describe_host
from gapfill import GapReader, GapReaderConfig
from gapfill.reader import SESSION_SETTINGS
from orderchain.model import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from orderchain.clients.postgres import Connection

PAGE_ROWS: Final = 5_000
"""Rows of a SELECT, of what a reader holds at once, and of a batch."""
LONG_GAP_ROWS: Final = 300_000
_MIDDLE_ROWS: Final = 1_000_000
"""Rows of the chain that is also stored as a row per order."""
FLAT_GAP_ROWS: Final = 10_000
RANGES: Final = {1: 1_000, 100: 1_000, 1_000: 500, 20_000: 40}
"""Rows of a gap, and how many gaps of a repeat."""
WARM_UP_GAPS: Final = 20
"""Statements are prepared by then."""


async def selected(site: Site, chain_id: int, after_id: int, *, as_events: bool) -> float:
    """Return rows per second of SELECTs from a row per order, one after the other."""
    connection = await _plain_connection(site)
    until_id, at = after_id + LONG_GAP_ROWS, after_id
    rows = 0
    began = time.perf_counter()
    while at < until_id:
        page = await connection.fetch(SQL["page"], chain_id, at, until_id, PAGE_ROWS)
        at = page[-1][0]
        if as_events:
            page = list(starmap(Event, page))
        rows += len(page)
    seconds = time.perf_counter() - began
    await connection.close()
    return _checked(rows, LONG_GAP_ROWS) / seconds


async def fill(site: Site, chain_id: int, after_id: int, rows: int) -> float:
    """Return rows per second of the shipped reader, on a connection that is open."""
    async with _reader(site, chain_id) as reader:
        mark = (await reader.standing(after_id)).mark
        if mark is None:
            raise RuntimeError(f"no row {after_id}")
        found = 0
        began = time.perf_counter()
        async for run in reader.runs(mark, after_id + rows):
            found += len(run.events)
        seconds = time.perf_counter() - began
    return _checked(found, rows) / seconds


async def gaps(site: Site, chain_id: int, last_id: int, rows: int, seed: int) -> dict[str, float]:
    """Return the milliseconds of gaps of `rows` rows, filled and plainly read, by turns."""
    random = Random(seed)
    connection = await _plain_connection(site)
    filled, read = [], []
    async with _reader(site, chain_id) as reader:
        for turn in range(RANGES[rows] + WARM_UP_GAPS):
            after_id = random.randrange(1, last_id - rows)
            mark = (await reader.standing(after_id)).mark
            if mark is None:
                raise RuntimeError(f"no row {after_id}")
            began = time.perf_counter()
            runs = [run.events async for run in reader.runs(mark, after_id + rows)]
            between = time.perf_counter()
            events = await _select(connection, chain_id, after_id, rows)
            ended = time.perf_counter()
            if [event for run in runs for event in run] != events:
                raise RuntimeError(f"other rows after {after_id}")
            if turn >= WARM_UP_GAPS:
                filled.append((between - began) * 1e3)
                read.append((ended - between) * 1e3)
    await connection.close()
    return {
        "fill_p50": statistics.median(filled),
        "select_p50": statistics.median(read),
        "fill_p99": _p99(filled),
        "select_p99": _p99(read),
        "rate_to_select": statistics.median(read) / statistics.median(filled),
    }


async def _select(connection: Connection, chain_id: int, after_id: int, rows: int) -> list[Event]:
    """Return the next rows, read as a program would that only wants them."""
    until_id, found = after_id + rows, []
    while after_id < until_id:
        page = await connection.fetch(SQL["page"], chain_id, after_id, until_id, PAGE_ROWS)
        after_id = page[-1][0]
        found += starmap(Event, page)
    return found


async def _plain_connection(site: Site) -> Connection:
    """Connect as the reader does, so that both arms get the same plans."""
    return await connect_to(site.gap_reader, settings=SESSION_SETTINGS)


def _reader(site: Site, chain_id: int) -> GapReader:
    config = GapReaderConfig(
        database=site.gap_reader, chain_id=chain_id, page_rows=PAGE_ROWS, linger_seconds=5.0
    )
    return GapReader(config)


def _checked(rows: int, expected: int) -> int:
    if rows != expected:
        raise RuntimeError(f"{rows} rows, expected {expected}")
    return rows


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


async def measure_long(site: Site, chain_id: int, repeats: int) -> dict[str, Any]:
    """Compare fill and SELECT over a long gap."""
    figures = await interleave(
        {
            "records": lambda: selected(site, chain_id, 1_000, as_events=False),
            "events": lambda: selected(site, chain_id, 1_000, as_events=True),
            "fill": lambda: fill(site, chain_id, 1_000, LONG_GAP_ROWS),
        },
        repeats,
    )
    found = {
        name: {
            **spread(values),
            "to_records": ratio(figures, name, "records"),
            "to_events": ratio(figures, name, "events"),
        }
        for name, values in figures.items()
    }
    for name, value in found.items():
        print(
            f"{name:8} {value['median']:10,.0f} rows/s ({value['min']:,.0f} to {value['max']:,.0f})"
            f"  / records {value['to_records']['median']:.2f}"
            f"  / events {value['to_events']['median']:.2f}"
            f" ({value['to_events']['min']:.2f} to {value['to_events']['max']:.2f})",
            flush=True,
        )
    return found


async def measure_ranges(site: Site, chain_id: int, last_id: int, repeats: int) -> dict[str, Any]:
    """Compare fill and SELECT by the rows of a gap."""
    found: dict[str, Any] = {}
    for rows in RANGES:
        rounds = [await gaps(site, chain_id, last_id, rows, seed) for seed in range(repeats)]
        found[str(rows)] = {name: spread([each[name] for each in rounds]) for name in rounds[0]}
        for name, value in found[str(rows)].items():
            print(
                f"{rows:6,} rows {name:14} {value['median']:.3f}"
                f" ({value['min']:.3f} to {value['max']:.3f})",
                flush=True,
            )
    return found


async def measure_flat(
    site: Site, chains: dict[int, int], repeats: int, *, is_warm: bool
) -> dict[str, Any]:
    """Time the same gap in chains of different length, at places drawn by a seed."""
    random = Random(1)

    async def fill_somewhere(rows: int, chain_id: int) -> float:
        after_id = random.randrange(1, rows - FLAT_GAP_ROWS)
        if is_warm:
            await fill(site, chain_id, after_id, FLAT_GAP_ROWS)
        return FLAT_GAP_ROWS / await fill(site, chain_id, after_id, FLAT_GAP_ROWS)

    def arm(rows: int, chain_id: int) -> Callable[[], Any]:
        return lambda: fill_somewhere(rows, chain_id)

    figures = await interleave({str(n): arm(n, chain) for n, chain in chains.items()}, repeats)
    base = str(min(chains))
    found = {
        name: {
            **spread(values),
            "to_shortest": ratio(figures, name, base),
            "median_to_shortest": statistics.median(values) / statistics.median(figures[base]),
        }
        for name, values in figures.items()
    }
    for name, value in found.items():
        print(
            f"{'warm' if is_warm else 'cold'}: 10,000 of {int(name):>10,}:"
            f" {value['median'] * 1e3:6.1f} ms"
            f" ({value['min'] * 1e3:.1f} to {value['max'] * 1e3:.1f})"
            f"  / shortest {value['median_to_shortest']:.2f}",
            flush=True,
        )
    return found


async def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--largest", type=int, default=10_000_000)
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    site = open_site(benchmark_stack())
    sizes = sorted({100_000, _MIDDLE_ROWS, arguments.largest})
    chains = {rows: await generate_chain(site, rows, batch_rows=PAGE_ROWS) for rows in sizes}
    middle = chains[_MIDDLE_ROWS]
    await generate_rows(site, middle, _MIDDLE_ROWS)
    result = {
        "benchmark": "fill",
        "host": describe_host(),
        "repeats": arguments.repeats,
        "payload_bytes": 100,
        "page_rows": PAGE_ROWS,
        "long_gap_rows": LONG_GAP_ROWS,
        "ranges_ms": await measure_ranges(site, middle, _MIDDLE_ROWS, arguments.repeats),
        "long": await measure_long(site, middle, arguments.repeats),
        "flat_warm_seconds": await measure_flat(site, chains, 4 * arguments.repeats, is_warm=True),
        "flat_cold_seconds": await measure_flat(site, chains, 2 * arguments.repeats, is_warm=False),
    }
    if arguments.dry:
        return
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "fill.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    uvloop.run(main())
