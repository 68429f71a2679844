"""Runs one load through one rival, in processes of its own, and proves it whole.

Each end of a run writes `ready` once it is warm, the sending end then waits for a line, and it ends
with its figures. The garbage collector stays on, but what was made before the timed part is frozen
out of its sight. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from benchmarks.host import ServerLoad
from benchmarks.load import Arm, Figures, Line, Load, Venue  # noqa: TC001 - `serve` reads it
from benchmarks.processes import RunFailed, call, next_line, resident_mib, say, serve, stand_ready
from benchmarks.rivals.rival import NotWhole, RowCounter, prepared, require_stored, rival_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site

_GROWN_AT_ONCE: Final = 20
"""Batches; enough that the sequencer never waits for more than a few times."""


async def run_load(site: Site, load: Load) -> dict[str, float]:
    """Run `load` and return its figures. Raises RunFailed, NotWhole, TimeoutError."""
    async with prepared(site, load) as venue:
        figures = await _run(venue)
        await require_stored(venue)
        return figures


async def run_arm(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Run the load of an arm: what most questions do. Raises as `run_load`."""
    if arm.load is None:
        raise RunFailed(f"{arm.name} has no load")
    return {**await run_load(site, arm.load)}


async def _run(venue: Venue) -> dict[str, float]:
    chosen = venue.load.implementation
    producing = call(produce, implementation=chosen, venue=venue)
    receiving = call(receive, implementation=chosen, venue=venue)
    async with AsyncExitStack() as stack:
        has_receiver = venue.load.stage == "deliver"
        if has_receiver:
            await stack.enter_async_context(receiving)
            await receiving.expect(b"listening")
        await stack.enter_async_context(producing)
        await producing.expect(b"ready")
        if has_receiver:
            await receiving.expect(b"ready")
        servers = await ServerLoad.now(venue.site)
        await producing.tell(b"go")
        produced = await producing.result()
        received = await receiving.result() if has_receiver else None
        used = (await ServerLoad.now(venue.site)).since(servers)
    return {**_figures(venue.load, produced, received), **used}


def _figures(load: Load, produced: Figures, received: Figures | None) -> dict[str, float]:
    began_ns: int = produced["began_ns"]

    def rate(until_ns: int) -> float:
        return load.orders / (until_ns - began_ns) * 1e9

    figures = {
        "orders": float(load.orders),
        "persisted_per_second": rate(produced["persisted_ns"]),
        "producer_cpu_seconds": produced["cpu_seconds"],
        "producer_memory_mib": produced["memory_mib"],
    }
    if load.stage != "persist":
        figures["published_per_second"] = rate(produced["published_ns"])
    if received is not None:
        if received["rows"] != load.all_orders:
            raise NotWhole(f"{received['rows']} orders were handed on of {load.all_orders}")
        # Never faster than durable: a receiver may be ahead of the sender's own report.
        figures |= {
            "delivered_per_second": rate(max(received["ended_ns"], produced["persisted_ns"])),
            "receiver_cpu_seconds": received["cpu_seconds"],
            "receiver_memory_mib": received["memory_mib"],
            **received["notes"],
        }
    return figures


# -- the processes ---------------------------------------------------------------------------------


async def produce(venue: Venue) -> dict[str, Any]:
    """Send the warm-up, wait for the word, send the rest, and return when it was durable.

    `published_ns` is when the broker had acknowledged the last order.
    """
    load = venue.load
    batches = load.batches(load.all_orders)
    async with rival_of(load.rival).producer(venue) as producer:
        warm_up = producer.ready(list(islice(batches, load.warm_up_orders // load.batch_rows)))
        await producer.send(warm_up)
        del warm_up
        # As they are made, some at a time: memory is the sequencer's, not theirs.
        grown = islice(batches, load.grow_orders // load.batch_rows)
        while some := list(islice(grown, _GROWN_AT_ONCE)):
            await producer.send(producer.ready(some))
        await producer.settle()
        memory_mib = resident_mib()
        timed = producer.ready(list(batches))
        stand_ready(b"ready")
        await next_line()
        began_ns, cpu = time.monotonic_ns(), time.process_time()
        await producer.send(timed)
        persisted_ns = time.monotonic_ns()
        await producer.settle()
        published_ns = time.monotonic_ns()
        return {
            "began_ns": began_ns,
            "persisted_ns": persisted_ns,
            "published_ns": published_ns,
            "cpu_seconds": time.process_time() - cpu,
            "memory_mib": memory_mib,
        }


async def receive(venue: Venue) -> dict[str, Any]:
    """Receive the warm-up, then the rest, and return when the last order was handed on."""
    load = venue.load
    counter = RowCounter()
    async with rival_of(load.rival).receiver(venue, counter) as receiver:
        say(b"listening")
        await receiver.receive(load.untimed_orders)
        stand_ready(b"ready")
        cpu = time.process_time()
        await receiver.receive(load.all_orders)
        ended_ns, cpu = time.monotonic_ns(), time.process_time() - cpu
    return {
        "ended_ns": ended_ns,
        "rows": counter.rows,
        "cpu_seconds": cpu,
        "memory_mib": resident_mib(),
        "notes": counter.notes,
    }


if __name__ == "__main__":
    serve(produce, receive)
