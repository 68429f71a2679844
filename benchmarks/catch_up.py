"""How fast does a receiver read on from Kafka, alone, and behind a caller that stopped for a time?

- alone: the topic is full, nobody else is at work; several receivers one after the other, each the
  shipped source and receiver in a process of its own;
- behind: orders go on arriving while the caller stops, and while the receiver catches up.

    python -m benchmarks.catch_up [--repeats 5] [--orders 1000000] [--arrivals 40000]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any, Final

import msgspec

from benchmarks.arms import spread
from benchmarks.chains import Site, benchmark_stack, make_chain, open_site
from benchmarks.children import Child
from benchmarks.host import RESULTS, describe_host
from benchmarks.impaired_receiving import Impaired, ImpairedJob
from benchmarks.sequencing import Sequenced, SequencingJob

FRAME_ROWS: Final = 1_000
PAUSE_SECONDS: Final = 10.0
CAUGHT_UP_SECONDS: Final = 0.25
"""A receiver this far behind the arrivals has caught up: a commit and its way through Kafka."""


def alone(site: Site, orders: int, repeats: int) -> dict[str, Any]:
    """Return rows per second, by the clock and by the processor's time, of a topic that is full."""
    chain_id = asyncio.run(make_chain(site))
    job = ImpairedJob(chain_id, site.gap_reader, site.kafka, orders, pauses=True)
    receiving = [Child("benchmarks.impaired_receiving", job) for _ in range(repeats)]
    for child in receiving:
        child.wait_for(b"live")
    sequencing = Child(
        "benchmarks.sequencing",
        SequencingJob(chain_id, site.sequencer, site.kafka, orders, FRAME_ROWS),
    )
    sequencing.result(Sequenced)
    rates, per_cpu = [], []
    for child in receiving:
        child.wait_for(b"paused")
        child.go_on()
        found = child.result(Impaired)
        rows = found.rows - found.rows_before
        if found.rows != orders or found.rows_live != orders:
            raise RuntimeError(f"{found.rows_live} of {orders} rows came from Kafka")
        rates.append(rows / (found.ended_ns - found.resumed_ns) * 1e9)
        per_cpu.append(rows / found.cpu_seconds)
    return {"rows_per_second": spread(rates), "rows_per_cpu_second": spread(per_cpu)}


def behind(site: Site, arrivals: int) -> dict[str, float]:
    """Return how fast a pause's backlog was worked off while `arrivals` orders per second came."""
    orders = int(arrivals * (PAUSE_SECONDS + 10))
    orders -= orders % FRAME_ROWS
    chain_id = asyncio.run(make_chain(site))
    job = ImpairedJob(chain_id, site.gap_reader, site.kafka, orders, pauses=True)
    receiving = Child("benchmarks.impaired_receiving", job)
    receiving.wait_for(b"live")
    sequencing = Child(
        "benchmarks.sequencing",
        SequencingJob(
            chain_id, site.sequencer, site.kafka, orders, FRAME_ROWS, orders_per_second=arrivals
        ),
    )
    receiving.wait_for(b"paused")
    time.sleep(PAUSE_SECONDS)
    receiving.go_on()
    sequenced, received = sequencing.result(Sequenced), receiving.result(Impaired)
    if received.rows != orders:
        raise RuntimeError(f"{received.rows} of {orders} rows")
    per_ns = arrivals / 1e9
    for at_ns, rows in received.samples:
        due = min(orders, (at_ns - sequenced.began_ns) * per_ns)
        if at_ns > received.resumed_ns and rows >= due - CAUGHT_UP_SECONDS * arrivals:
            seconds = (at_ns - received.resumed_ns) / 1e9
            return {
                "backlog": (received.resumed_ns - sequenced.began_ns) * per_ns
                - received.rows_before,
                "seconds": seconds,
                "rows_per_second": (rows - received.rows_before) / seconds,
                "to_arrivals": (rows - received.rows_before) / seconds / arrivals,
                "live_share": received.rows_live / received.rows,
                # It shows whether the orders arrived at the intended rate.
                "arrivals": orders / (sequenced.committed_ns - sequenced.began_ns) * 1e9,
            }
    raise RuntimeError("never caught up")


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--orders", type=int, default=1_000_000)
    parser.add_argument("--arrivals", type=int, default=40_000)
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    site = open_site(benchmark_stack())
    full = alone(site, arguments.orders, arguments.repeats)
    print(f"alone: {_told(full['rows_per_second'])}; per second of its CPU"
          f" {_told(full['rows_per_cpu_second'])}", flush=True)  # fmt: skip
    rounds = []
    for _ in range(arguments.repeats):
        rounds.append(behind(site, arguments.arrivals))
        print({name: round(value, 2) for name, value in rounds[-1].items()}, flush=True)
    found = {name: spread([each[name] for each in rounds]) for name in rounds[0]}
    print(f"behind: {statistics.median([r['to_arrivals'] for r in rounds]):.1f} x the arrivals")
    if arguments.dry:
        return
    result = {
        "benchmark": "catch_up",
        "host": describe_host(),
        "repeats": arguments.repeats,
        "frame_rows": FRAME_ROWS,
        "payload_bytes": 100,
        "pause_seconds": PAUSE_SECONDS,
        "arrivals_per_second": arguments.arrivals,
        "orders_alone": arguments.orders,
        "alone": full,
        "behind": found,
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "catch_up.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def _told(found: dict[str, float]) -> str:
    return f"{found['median']:,.0f}/s ({found['min']:,.0f} to {found['max']:,.0f})"


if __name__ == "__main__":
    main()
