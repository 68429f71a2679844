"""What is left of the end-to-end rate when frames are lost between the broker and the receiver?

A sequencer and a receiver, each a process of its own, with real servers; every lost frame is a gap
that the receiver fills from the database. By turns without loss and with.

    python -m benchmarks.loss [--repeats 5] [--orders 200000] [--share 0.05]
"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from benchmarks.arms import interleave, ratio, spread
from benchmarks.chains import Site, benchmark_stack, make_chain, open_site
from benchmarks.children import Child
from benchmarks.host import RESULTS, describe_host
from benchmarks.impaired_receiving import Impaired, ImpairedJob
from benchmarks.sequencing import Sequenced, SequencingJob

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH_ROWS: Final = (100, 1_000)


class Loss:
    """Runs orders through a new chain, and counts what was lost and filled."""

    def __init__(self, site: Site, orders: int) -> None:
        self._site = site
        self._orders = orders
        self._seed = 0
        self.gaps: dict[str, list[int]] = {}

    async def run(self, name: str, batch_rows: int, share: float) -> float:
        """Return orders per second. Raises RuntimeError when one was not handed on."""
        self._seed += 1
        site, orders = self._site, self._orders
        chain_id = await make_chain(site)
        job = ImpairedJob(chain_id, site.gap_reader, site.kafka, orders, share, self._seed)
        receiving = Child("benchmarks.impaired_receiving", job)
        receiving.wait_for(b"live")
        sequencing = Child(
            "benchmarks.sequencing",
            SequencingJob(chain_id, site.sequencer, site.kafka, orders, batch_rows),
        )
        sequenced, received = sequencing.result(Sequenced), receiving.result(Impaired)
        if received.rows != orders or received.last_id != sequenced.last_id:
            raise RuntimeError(f"sent {orders}, received {received.rows}")
        self.gaps.setdefault(name, []).append(received.gaps)
        return orders / (received.ended_ns - sequenced.began_ns) * 1e9


async def measure(site: Site, orders: int, repeats: int, share: float) -> dict[str, Any]:
    """Run both arms with batches of every size."""
    result: dict[str, Any] = {}
    for batch_rows in BATCH_ROWS:
        loss = Loss(site, orders)
        arms: dict[str, Callable[[], Any]] = {
            "clean": lambda loss=loss, size=batch_rows: loss.run("clean", size, 0.0),
            "lossy": lambda loss=loss, size=batch_rows: loss.run("lossy", size, share),
        }
        figures = await interleave(arms, repeats)
        result[str(batch_rows)] = {
            name: {
                **spread(values),
                "to_clean": ratio(figures, name, "clean"),
                "gaps": loss.gaps[name],
            }
            for name, values in figures.items()
        }
        for name, found in result[str(batch_rows)].items():
            against = found["to_clean"]
            print(
                f"batch {batch_rows:>5} {name:6} {found['median']:9,.0f}/s  / clean"
                f" {against['median']:.2f} ({against['min']:.2f} to {against['max']:.2f})"
                f"  gaps {found['gaps']}",
                flush=True,
            )
    return result


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--orders", type=int, default=200_000)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    site = open_site(benchmark_stack())
    found = asyncio.run(measure(site, arguments.orders, arguments.repeats, arguments.share))
    if arguments.dry:
        return
    result = {
        "benchmark": "loss",
        "host": describe_host(),
        "orders": arguments.orders,
        "repeats": arguments.repeats,
        "share_of_frames_lost": arguments.share,
        "payload_bytes": 100,
        "by_batch_rows": found,
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "loss.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
