"""How fast is the whole path, and does its memory stay flat?

Accepted, committed, published, and received in order, by two processes; from the first `submit` to
the last row handed on. Only rows that the database holds and the receiver handed on are counted.

    python -m benchmarks.end_to_end [--repeats 5] [--orders 200000] [--memory-orders 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
from typing import TypeVar

import asyncpg
import msgspec

from benchmarks.chains import Site, benchmark_stack, make_chain, open_site
from benchmarks.host import RESULTS, describe_host
from benchmarks.receiving import Received, ReceivingJob
from benchmarks.sequencing import Sequenced, SequencingJob

BATCH_ROWS = (100, 1_000, 5_000)

_Result = TypeVar("_Result")


def run_once(site: Site, orders: int, batch_rows: int, *, is_lazy: bool) -> dict[str, float]:
    """Send `orders` through a new chain; return its figures. Raises when a row is missing."""
    chain_id = asyncio.run(make_chain(site))
    receiving = _start(
        "benchmarks.receiving", ReceivingJob(chain_id, site.gap_reader, site.kafka, orders)
    )
    if receiving.stdout is None or receiving.stdout.readline() != b"live\n":
        raise RuntimeError("the receiver did not go live")
    sequencing = _start(
        "benchmarks.sequencing",
        SequencingJob(chain_id, site.sequencer, site.kafka, orders, batch_rows, is_lazy=is_lazy),
    )
    sequenced = _result(sequencing, Sequenced)
    received = _result(receiving, Received)
    stored = asyncio.run(_stored_rows(site, chain_id))
    if not stored == received.rows == orders or received.last_id != sequenced.last_id:
        raise RuntimeError(f"sent {orders}, stored {stored}, received {received}")
    return {
        "orders_per_second": orders / (received.ended_ns - sequenced.began_ns) * 1e9,
        "committed_per_second": orders / (sequenced.committed_ns - sequenced.began_ns) * 1e9,
        "live_share": received.rows_live / orders,
        "sequencer_memory_mib": sequenced.memory_mib,
        "receiver_memory_mib": received.memory_mib,
        "sequencer_cpu_us_per_order": sequenced.cpu_seconds / orders * 1e6,
        "receiver_cpu_us_per_order": received.cpu_seconds / orders * 1e6,
    }


def summarise(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return median, lowest and highest of every figure."""
    return {
        name: {
            "median": statistics.median(values),
            "min": min(values),
            "max": max(values),
        }
        for name in runs[0]
        for values in [[run[name] for run in runs]]
    }


async def _stored_rows(site: Site, chain_id: int) -> int:
    connection = await asyncpg.connect(site.admin)
    try:
        count = await connection.fetchval(
            "SELECT count(*) FROM chain_event WHERE chain_id = $1", chain_id
        )
        return int(count)
    finally:
        await connection.close()


def _start(module: str, job: msgspec.Struct) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", module, msgspec.json.encode(job).decode()],
        stdout=subprocess.PIPE,
    )


def _result(process: subprocess.Popen[bytes], kind: type[_Result]) -> _Result:
    output, _ = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    return msgspec.json.decode(output.splitlines()[-1], type=kind)


def main() -> None:
    """Measure, print a table, and add the lines to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--orders", type=int, default=200_000)
    parser.add_argument("--memory-orders", type=int, default=1_000_000)
    arguments = parser.parse_args()
    site = open_site(benchmark_stack())
    run_once(site, 20_000, 1_000, is_lazy=False)  # warm-up
    runs: dict[int, list[dict[str, float]]] = {batch_rows: [] for batch_rows in BATCH_ROWS}
    for _ in range(arguments.repeats):
        for batch_rows in BATCH_ROWS:
            runs[batch_rows].append(run_once(site, arguments.orders, batch_rows, is_lazy=False))
            print(f"batch {batch_rows}: {runs[batch_rows][-1]['orders_per_second']:,.0f}/s")
    memory = {
        orders: run_once(site, orders, 1_000, is_lazy=True)
        for orders in (arguments.memory_orders // 10, arguments.memory_orders)
    }
    result = {
        "benchmark": "end_to_end",
        "host": describe_host(),
        "orders": arguments.orders,
        "repeats": arguments.repeats,
        "payload_bytes": 100,
        "by_batch_rows": {size: summarise(found) for size, found in runs.items()},
        "memory_by_orders": memory,
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "end_to_end.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")
    for size, found in result["by_batch_rows"].items():
        rate = found["orders_per_second"]
        print(f"{size:>6} {rate['median']:>10,.0f}/s ({rate['min']:,.0f} to {rate['max']:,.0f})")
    for orders, found in memory.items():
        print(
            f"{orders:>9,} orders: sequencer {found['sequencer_memory_mib']:.0f} MiB, "
            f"receiver {found['receiver_memory_mib']:.0f} MiB"
        )


if __name__ == "__main__":
    main()
