"""What do orders cost that are submitted one by one, and one that comes alone?

- one future each: `submit_nowait`, 20,000 futures waiting at most;
- one task each: 20,000 tasks that await one `submit` after the other;
- one order: submitted when nothing is under way, beside a single INSERT of the same order as a
  row of its own, as far apart.

    python -m benchmarks.one_by_one [--repeats 5]
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from typing import TYPE_CHECKING

from benchmarks.arms import interleave
from benchmarks.chains import Site, connect_to, draw_chain_id, make_chain
from benchmarks.committing import Figures, config_of, run, tell
from benchmarks.rivals.order_rows import SQL, drop_partition, make_partition
from benchmarks.workload import EVENT_TIME_NS, order_batches
from sequencer import Ack, open_sequencer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

_WAITING = 20_000
"""Enough for three batches under way and a fourth to grow."""

_PAUSE_SECONDS = 0.01
"""After it, the previous order is published, and its INSERT is long done."""


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


async def one_order(site: Site, count: int = 200) -> float:
    """Return the median seconds of one order alone: nothing is under way when it is submitted."""
    chain_id = await make_chain(site)
    async with open_sequencer(config_of(site, chain_id)) as sequencer:
        return await median_seconds(lambda n: sequencer.submit(f"one-{n}", bytes(100)), count)


async def one_insert(site: Site, count: int = 200) -> float:
    """Return the median seconds of a single INSERT of the same order as a row, as far apart."""
    chain_id = draw_chain_id()
    await make_partition(site, chain_id)
    connection = await connect_to(site.sequencer)
    seconds = await median_seconds(
        lambda n: connection.execute(
            SQL["rows_insert"], chain_id, n + 1, n, f"one-{n}", EVENT_TIME_NS, bytes(100)
        ),
        count,
    )
    await connection.close()
    await drop_partition(site, chain_id)
    return seconds


async def median_seconds(call: Callable[[int], Awaitable[object]], count: int) -> float:
    """Return the median time of `count` awaited calls, each long after the one before."""
    times = []
    for n in range(count):
        began = time.perf_counter()
        await call(n)
        times.append(time.perf_counter() - began)
        await asyncio.sleep(_PAUSE_SECONDS)
    return statistics.median(times)


async def measure(site: Site, arguments: argparse.Namespace) -> Figures:
    """Submit one by one, and alone."""
    figures = await interleave(
        {
            "one future each": lambda: one_future_each(site, arguments.orders),
            "one task each": lambda: one_task_each(site, arguments.orders),
        },
        arguments.repeats,
    )
    result: Figures = {"futures": tell("futures", figures, "one future each")}
    figures = await interleave(
        {"one INSERT": lambda: one_insert(site), "one order": lambda: one_order(site)},
        arguments.repeats,
    )
    return result | {"one order": tell("one order", figures, "one INSERT")}


if __name__ == "__main__":
    run("one_by_one", __doc__ or "", measure)
