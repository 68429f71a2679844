"""How much memory does a gap far larger than a page cost a receiver?

A receiver has caught up; then a million rows stand in the database that Kafka never brings. It
finds them by a look at the head, and reads them while a caller takes each run and lets go of it.

    python -m benchmarks.large_gap [--repeats 5] [--rows 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

import msgspec

from benchmarks.arms import spread
from benchmarks.chains import Site, benchmark_stack, open_site
from benchmarks.children import Child
from benchmarks.generated import generate_chain, grow_chain
from benchmarks.host import RESULTS, describe_host
from benchmarks.impaired_receiving import Impaired, ImpairedJob

FIRST_ROWS: Final = 1_000
"""Rows before the gap, one page. The pages that a fill holds count as growth."""


def run_once(site: Site, rows: int) -> dict[str, float]:
    """Return what a gap of `rows` cost. Raises RuntimeError when a row did not come."""
    chain_id = asyncio.run(generate_chain(site, FIRST_ROWS))
    last_id = FIRST_ROWS + rows
    job = ImpairedJob(chain_id, site.gap_reader, site.kafka, last_id)
    receiving = Child("benchmarks.impaired_receiving", job)
    receiving.wait_for(b"live")
    asyncio.run(grow_chain(site, chain_id, FIRST_ROWS, last_id))
    found = receiving.result(Impaired)
    if found.rows != last_id or found.rows_filled != rows:
        raise RuntimeError(f"{found.rows_filled} of {rows} rows were filled")
    began_ns = next(at for at, handed_on in found.samples if handed_on > FIRST_ROWS)
    return {
        "memory_before_mib": found.memory_live_mib,
        "memory_most_mib": found.memory_mib,
        "growth_mib": found.memory_mib - found.memory_live_mib,
        "rows_per_second": rows / (found.ended_ns - began_ns) * 1e9,
    }


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    site = open_site(benchmark_stack())
    rounds = []
    for _ in range(arguments.repeats):
        rounds.append(run_once(site, arguments.rows))
        print({name: round(value, 1) for name, value in rounds[-1].items()}, flush=True)
    if arguments.dry:
        return
    result = {
        "benchmark": "large_gap",
        "host": describe_host(),
        "repeats": arguments.repeats,
        "gap_rows": arguments.rows,
        "payload_bytes": 100,
        **{name: spread([each[name] for each in rounds]) for name in rounds[0]},
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "large_gap.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
