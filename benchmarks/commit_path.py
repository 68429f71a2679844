"""What do ids, pids, fence, seal and batch row cost a commit, and what do keys cost it?

Every arm writes the same rows into a chain of its own, one commit a batch:

- bare: COPY of bytes that were made before, nothing else;
- serial: the sequencer's commit path, one batch after the other;
- pipelined: the sequencer, three calls in flight, with a broker that takes everything at once;
- submit_many: the sequencer as it is embedded, with a real broker on the same machine;
- keys: the same with keys compared, by kind of key and with many keys present;
- one order: a single order's commit beside a single INSERT.

    python -m benchmarks.commit_path [--repeats 5] [--present 3000000]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING

import asyncpg
import msgspec
import uvloop

from benchmarks.arms import interleave, ratio, spread
from benchmarks.chains import Site, benchmark_stack, make_chain, open_site
from benchmarks.host import RESULTS, describe_host
from benchmarks.workload import EVENT_TIME_NS, order_batches
from orderchain.clock import SystemClock
from orderchain.collector import calm_collector
from orderchain.limits import FRAME_BYTES_MAX
from orderchain.row_image import COLUMNS, COPY_HEADER, COPY_TRAILER
from sequencer import Ack, Order, Sequencer, SequencerConfig, open_sequencer
from sequencer.core import SequencerCore
from sequencer.key_store import PostgresKeyStore
from sequencer.lease import PostgresLease
from sequencer.store import PostgresChainStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BATCH_ROWS = (100, 1_000, 5_000)
_IN_FLIGHT = 3
_WAITING = 20_000


def config_of(site: Site, chain_id: int, **settings: int) -> SequencerConfig:
    """Return the settings of a sequencer of `chain_id`."""
    return SequencerConfig(chain_id=chain_id, database=site.sequencer, kafka=site.kafka, **settings)


async def bare(site: Site, orders: int, batch_rows: int) -> float:
    """Return rows per second of COPY alone."""
    chain_id = await make_chain(site)
    config = config_of(site, chain_id, batch_rows_max=batch_rows)
    store = PostgresChainStore(config)
    term = await store.take_over("bench", await store.look())
    await store.close()
    core = SequencerCore(term, takeover_skip_ids=0)
    buffers = [
        memoryview(COPY_HEADER + core.assemble(batch, EVENT_TIME_NS).rows + COPY_TRAILER)
        for batch in order_batches(orders, batch_rows)
    ]
    connection = await asyncpg.connect(site.sequencer)
    began = time.perf_counter()
    for buffer in buffers:
        await connection.copy_to_table(
            "chain_event", source=buffer, columns=COLUMNS, format="binary"
        )
    seconds = time.perf_counter() - began
    await connection.close()
    return orders / seconds


async def serial(site: Site, orders: int, batch_rows: int) -> float:
    """Return rows per second of the commit path, one batch after the other."""
    chain_id = await make_chain(site)
    store = PostgresChainStore(config_of(site, chain_id, batch_rows_max=batch_rows))
    term = await store.take_over("bench", await store.look())
    core = SequencerCore(term, takeover_skip_ids=0)
    batches = list(order_batches(orders, batch_rows))
    began = time.perf_counter()
    for batch in batches:
        await store.commit(core.assemble(batch, time.time_ns()), published_id=0)
    seconds = time.perf_counter() - began
    await store.close()
    return orders / seconds


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
) -> float:
    """Return orders per second of the embedded sequencer, publishing to Kafka beside it."""
    chain_id = chain_id or await make_chain(site)
    config = config_of(site, chain_id, batch_rows_max=batch_rows, key_window_rows=window)
    async with open_sequencer(config) as sequencer:
        batches = list(
            order_batches(orders, batch_rows)
            if key is None
            else keyed(orders, batch_rows, key, bytes(100))
        )
        return orders / await submit_all(sequencer, batches)


async def fill(site: Site, rows: int) -> int:
    """Return a chain that holds `rows` rows with random keys."""
    chain_id = await make_chain(site)
    config = config_of(site, chain_id, batch_rows_max=5_000, key_window_rows=10**7)
    async with open_sequencer(config) as sequencer:
        for start in range(0, rows, 500_000):
            count = min(500_000, rows - start)
            await submit_all(sequencer, list(keyed(count, 5_000, random_keys(), b"")))
    return chain_id


class OpenSink:
    """A broker that is always done: what the commit path does, and no more, is measured."""

    frame_bytes_max = FRAME_BYTES_MAX

    async def start(self, topic: str, partition: int) -> None:
        """Accept any topic."""

    async def send(self, frames: Sequence[bytes]) -> None:
        """Take the frames."""

    async def close(self) -> None:
        """Nothing is held."""


async def pipelined(site: Site, orders: int, batch_rows: int) -> float:
    """Return orders per second of the sequencer without a broker."""
    chain_id = await make_chain(site)
    config = config_of(site, chain_id, batch_rows_max=batch_rows, key_window_rows=0)
    batches = list(order_batches(orders, batch_rows))
    sequencer = Sequencer(
        config,
        store=PostgresChainStore(config),
        keys=PostgresKeyStore(config),
        lease=PostgresLease(config),
        sink=OpenSink(),
        clock=SystemClock(),
    )
    async with sequencer:
        return orders / await submit_all(sequencer, batches)


async def one_future_each(site: Site, orders: int) -> float:
    """Return orders per second when every order has a future of its own, 20,000 waiting at most."""
    chain_id = await make_chain(site)
    flat = [order for batch in order_batches(orders, 5_000) for order in batch]
    waiting: deque[asyncio.Future[Ack]] = deque()
    async with open_sequencer(config_of(site, chain_id, key_window_rows=0)) as sequencer:
        began = time.perf_counter()
        for order in flat:
            waiting.append(sequencer.submit_nowait(order.key, order.payload, order.event_time_ns))
            if len(waiting) >= _WAITING:
                await waiting.popleft()
        while waiting:
            await waiting.popleft()
        return orders / (time.perf_counter() - began)


async def one_task_each(site: Site, orders: int) -> float:
    """Return orders per second of 20,000 tasks that each await one order after the other."""
    chain_id = await make_chain(site)
    left = iter([order for batch in order_batches(orders, 5_000) for order in batch])
    async with open_sequencer(config_of(site, chain_id, key_window_rows=0)) as sequencer:

        async def client() -> None:
            for order in left:
                await sequencer.submit(order.key, order.payload, order.event_time_ns)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(_WAITING)))
        return orders / (time.perf_counter() - began)


async def one_order(site: Site, count: int = 300) -> float:
    """Return the median seconds of one order alone, submitted and committed."""
    chain_id = await make_chain(site)
    async with open_sequencer(config_of(site, chain_id)) as sequencer:
        return await median_seconds(lambda n: sequencer.submit(f"one-{n}", bytes(100)), count)


async def one_insert(site: Site, count: int = 300) -> float:
    """Return the median seconds of a single INSERT of the same row."""
    chain_id = await make_chain(site)
    connection = await asyncpg.connect(site.sequencer)
    insert = (
        "INSERT INTO chain_event (chain_id, id, pid, key, event_time_ns, payload) "
        "VALUES ($1, $2, $3, $4, $5, $6)"
    )
    seconds = await median_seconds(
        lambda n: connection.execute(
            insert, chain_id, n + 1, n, f"one-{n}", EVENT_TIME_NS, bytes(100)
        ),
        count,
    )
    await connection.close()
    return seconds


async def median_seconds(call: Callable[[int], object], count: int) -> float:
    """Return the median time of `count` awaited calls, one after the other."""
    times = []
    for n in range(count):
        began = time.perf_counter()
        await call(n)  # type: ignore[misc]
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def keyed(
    count: int, batch_rows: int, key: Callable[[int], str], payload: bytes
) -> Iterator[list[Order]]:
    """Yield orders whose keys are made by `key`."""
    for start in range(0, count, batch_rows):
        yield [
            Order(key(n), payload, EVENT_TIME_NS)
            for n in range(start, min(start + batch_rows, count))
        ]


def client_keys() -> Callable[[int], str]:
    """Keys of the form `client#number`, rising; a new series at each call."""
    run = uuid.uuid4().hex[:8]
    return lambda n: f"{run}-{n % 64}#{n}"


def time_ordered_keys() -> Callable[[int], str]:
    """Free-form keys that begin with a time."""
    run = uuid.uuid4().hex[:8]
    return lambda n: f"{time.time_ns():x}-{run}-{n:x}"


def random_keys() -> Callable[[int], str]:
    """Random free-form keys."""
    return lambda _: uuid.uuid4().hex


async def measure(site: Site, repeats: int, orders: int, present: int) -> dict[str, object]:
    """Run every comparison and return its figures."""
    result: dict[str, object] = {}
    for size in BATCH_ROWS:
        count = min(orders, size * 200)
        figures = await interleave(
            {
                "bare": lambda size=size, count=count: bare(site, count, size),
                "serial": lambda size=size, count=count: serial(site, count, size),
                "pipelined": lambda size=size, count=count: pipelined(site, count, size),
                "submit_many": lambda size=size, count=count: submit_many(site, count, size),
            },
            repeats,
        )
        result[f"batch {size}"] = tell(f"batch {size}", figures, "bare")
        against = ratio(figures, "pipelined", "serial")
        result[f"pipelined / serial {size}"] = against
        print(f"batch {size}: pipelined / serial {against['median']:.2f}", flush=True)
    filled = await fill(site, present)
    figures = await interleave(
        {
            "keys off": lambda: submit_many(site, orders, 1_000),
            "client#number": lambda: submit_many(
                site, orders, 1_000, window=10**7, key=client_keys()
            ),
            "time-ordered": lambda: submit_many(
                site, orders, 1_000, window=10**7, key=time_ordered_keys()
            ),
            f"random, {present:,} present": lambda: submit_many(
                site, orders, 1_000, window=10**7, key=random_keys(), chain_id=filled
            ),
        },
        repeats,
    )
    result["keys"] = tell("keys", figures, "keys off")
    figures = await interleave(
        {
            "one future each": lambda: one_future_each(site, orders),
            "one task each": lambda: one_task_each(site, orders),
        },
        repeats,
    )
    result["futures"] = tell("futures", figures, "one future each")
    figures = await interleave(
        {"one INSERT": lambda: one_insert(site), "one order": lambda: one_order(site)}, repeats
    )
    result["one order"] = tell("one order", figures, "one INSERT")
    return result


def tell(title: str, figures: dict[str, list[float]], base: str) -> dict[str, object]:
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


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--orders", type=int, default=300_000)
    parser.add_argument("--present", type=int, default=3_000_000)
    arguments = parser.parse_args()
    site = open_site(benchmark_stack())
    calm_collector()
    result = {
        "benchmark": "commit_path",
        "host": describe_host(),
        "settings": vars(arguments),
        "figures": uvloop.run(
            measure(site, arguments.repeats, arguments.orders, arguments.present)
        ),
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "commit_path.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
