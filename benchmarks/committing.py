"""What the benchmarks of the sequencer alone have in common."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from benchmarks.arms import ratio, spread
from benchmarks.chains import Site, benchmark_stack, make_chain, open_site
from benchmarks.host import RESULTS, describe_host
from benchmarks.workload import EVENT_TIME_NS, order_batches
from orderchain.collector import calm_collector
from sequencer import Order, Sequencer, SequencerConfig, open_sequencer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

Figures = dict[str, Any]

_IN_FLIGHT = 3


def config_of(site: Site, chain_id: int, **settings: int) -> SequencerConfig:
    """Return the settings of a sequencer of `chain_id`."""
    return SequencerConfig(chain_id=chain_id, database=site.sequencer, kafka=site.kafka, **settings)


async def submit_all(sequencer: Sequencer, batches: list[list[Order]]) -> float:
    """Return the seconds that it takes until all `batches` are committed."""
    began = time.perf_counter()
    in_flight: deque[asyncio.Task[object]] = deque()
    for batch in batches:
        in_flight.append(asyncio.create_task(sequencer.submit_many(batch)))
        await asyncio.sleep(0)
        if len(in_flight) >= _IN_FLIGHT:
            await in_flight.popleft()
    await asyncio.gather(*in_flight)
    return time.perf_counter() - began


async def submit_many(
    site: Site,
    orders: int,
    batch_rows: int,
    *,
    window: int = 0,
    key: Callable[[int], str] | None = None,
    chain_id: int | None = None,
    payload_bytes: int = 100,
) -> float:
    """Return orders per second of the embedded sequencer, publishing to Kafka beside it."""
    chain_id = chain_id or await make_chain(site)
    config = config_of(site, chain_id, batch_rows_max=batch_rows, key_window_rows=window)
    async with open_sequencer(config) as sequencer:
        batches = list(
            order_batches(orders, batch_rows, payload_bytes=payload_bytes)
            if key is None
            else keyed(orders, batch_rows, key, bytes(payload_bytes))
        )
        return orders / await submit_all(sequencer, batches)


def keyed(
    count: int, batch_rows: int, key: Callable[[int], str], payload: bytes
) -> Iterator[list[Order]]:
    """Yield orders whose keys are made by `key`."""
    for start in range(0, count, batch_rows):
        yield [
            Order(key(n), payload, EVENT_TIME_NS)
            for n in range(start, min(start + batch_rows, count))
        ]


def tell(title: str, figures: dict[str, list[float]], base: str) -> Figures:
    """Print a comparison and return it."""
    for name, values in figures.items():
        found, against = spread(values), ratio(figures, name, base)
        print(
            f"{title:12} {name:28} {found['median']:14,.4g} "
            f"{against['median']:.2f} ({against['min']:.2f} to {against['max']:.2f})",
            flush=True,
        )
    return {
        name: {**spread(values), "ratio": ratio(figures, name, base)}
        for name, values in figures.items()
    }


def run(
    name: str,
    doc: str,
    measure: Callable[[Site, argparse.Namespace], Coroutine[Any, Any, Figures]],
    **options: int,
) -> None:
    """Measure, print, and add a line to the results. `options` are whole numbers to choose."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    for option, default in {"repeats": 5, "orders": 200_000, **options}.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    arguments = parser.parse_args()
    site = open_site(benchmark_stack())
    calm_collector()
    result = {
        "benchmark": name,
        "host": describe_host(),
        "settings": vars(arguments),
        "figures": uvloop.run(measure(site, arguments)),
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")
