"""Does everything keep up at the highest rate? Nothing skipped, all delivered live, memory flat.

Orders are submitted as fast as they are taken, for a minute or so, while a receiver follows. The
same orders come again and again, keys not compared: no process could hold so many.

    python -m benchmarks.full_rate [--batch-rows 1000 5000] [--orders 36000000]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from typing import Any, Final

import msgspec

from benchmarks.chains import Site, benchmark_stack, connect_to, empty_chain, make_chain, open_site
from benchmarks.children import Child
from benchmarks.host import RESULTS, describe_host
from benchmarks.impaired_receiving import Impaired, ImpairedJob
from benchmarks.sequencing import Sequenced, SequencingJob

DISTINCT_ORDERS: Final = 500_000
PAYLOAD_BYTES: Final = 60
FILLED_SHARE_MAX: Final = 0.002


async def skipped_ranges(site: Site, chain_id: int) -> int:
    """Return how many ranges were never published."""
    connection = await connect_to(site.auditor)
    try:
        found = await connection.fetchval(
            "SELECT count(*) FROM chain_skip WHERE chain_id = $1", chain_id
        )
    finally:
        await connection.close()
    return int(found)


def run_once(site: Site, batch_rows: int, orders: int) -> dict[str, Any]:
    """Return what became of `orders`. Raises RuntimeError where one was skipped or filled."""
    chain_id = asyncio.run(make_chain(site))
    receiving = Child(
        "benchmarks.impaired_receiving",
        ImpairedJob(chain_id, site.gap_reader, site.kafka, orders),
    )
    receiving.wait_for(b"live")
    sequencing = Child(
        "benchmarks.sequencing",
        SequencingJob(
            chain_id, site.sequencer, site.kafka, orders, batch_rows,
            payload_bytes=PAYLOAD_BYTES, distinct_orders=DISTINCT_ORDERS,
        ),
    )  # fmt: skip
    sequenced, received = sequencing.result(Sequenced), receiving.result(Impaired)
    skips = asyncio.run(skipped_ranges(site, chain_id))
    asyncio.run(empty_chain(site, chain_id))
    # A new leader's first frames come from the database: its key is not known before.
    if skips or received.rows != orders or received.rows_filled > orders * FILLED_SHARE_MAX:
        raise RuntimeError(
            f"{skips} ranges were skipped, {received.rows_filled} rows of {orders} filled"
        )
    # The first rounds are left out: pools and buffers fill.
    memories = sequenced.memories_mib[len(sequenced.memories_mib) // 4 :]
    half = len(memories) // 2
    seconds = (received.ended_ns - sequenced.began_ns) / 1e9
    return {
        "seconds": seconds,
        "orders_per_second": orders / seconds,
        "live_share": received.rows_live / orders,
        "publish_waits": sequenced.waits,
        "publish_waited_seconds": sequenced.waited_seconds,
        "sequencer_memory_mib": [
            statistics.median(memories[:half]),
            statistics.median(memories[half:]),
        ],
        "sequencer_memory_most_mib": sequenced.memory_mib,
        "receiver_memory_mib": [received.memory_live_mib, received.memory_mib],
    }


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch-rows", type=int, nargs="+", default=[1_000, 5_000])
    parser.add_argument("--orders", type=int, default=36_000_000)
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    site = open_site(benchmark_stack())
    found = {}
    for batch_rows in arguments.batch_rows:
        found[str(batch_rows)] = run_once(site, batch_rows, arguments.orders)
        print(batch_rows, found[str(batch_rows)], flush=True)
    if arguments.dry:
        return
    result = {
        "benchmark": "full_rate",
        "host": describe_host(),
        "orders": arguments.orders,
        "payload_bytes": PAYLOAD_BYTES,
        "by_batch_rows": found,
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "full_rate.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
