"""One end of a run: `python -m benchmarks.worker produce|receive`, the venue as a line on stdin.

It writes `ready` once it is warm, the sending end then waits for a line, and it ends with a line of
JSON. The garbage collector stays on, but what was made before the timed part is frozen out of its
sight.
"""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvloop

from benchmarks.load import Produced, Received, Venue
from benchmarks.readiness import say, stand_ready
from benchmarks.rivals import rival_of
from benchmarks.rivals.rival import Tally
from benchmarks.workload import order_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rivals.rival import Producer
    from sequencer import Order

_GROWN_AT_ONCE = 20
"""Batches; enough that the sequencer never waits for more than a few times."""


async def produce(venue: Venue) -> Produced:
    """Send the warm-up, wait for the word, send the rest, and return when it was durable."""
    load = venue.load
    batches = order_batches(
        load.all_orders, load.batch_rows, payload_bytes=load.payload_bytes, seed=load.seed
    )
    async with rival_of(load.rival).producer(venue) as producer:
        warm_up = producer.ready(list(islice(batches, load.warm_up_orders // load.batch_rows)))
        await producer.send(warm_up)
        del warm_up
        await _grow(producer, islice(batches, load.grow_orders // load.batch_rows))
        await producer.settle()
        memory_mib = _memory_mib()
        timed = producer.ready(list(batches))
        stand_ready(b"ready")
        await asyncio.to_thread(sys.stdin.buffer.readline)
        began_ns, cpu = time.monotonic_ns(), time.process_time()
        await producer.send(timed)
        persisted_ns = time.monotonic_ns()
        await producer.settle()
        published_ns = time.monotonic_ns()
        return Produced(
            began_ns=began_ns,
            persisted_ns=persisted_ns,
            published_ns=published_ns,
            cpu_seconds=time.process_time() - cpu,
            memory_mib=memory_mib,
        )


async def _grow(producer: Producer, batches: Iterator[list[Order]]) -> None:
    """Send batches as they are made, some at a time: memory is the sequencer's, not theirs."""
    while some := list(islice(batches, _GROWN_AT_ONCE)):
        await producer.send(producer.ready(some))


async def receive(venue: Venue) -> Received:
    """Receive the warm-up, then the rest, and return when the last order was handed on."""
    load = venue.load
    tally = Tally(is_kept=load.is_kept)
    async with rival_of(load.rival).receiver(venue, tally) as receiver:
        say(b"listening")
        await receiver.receive(load.untimed_orders)
        stand_ready(b"ready")
        cpu = time.process_time()
        await receiver.receive(load.all_orders)
        ended_ns, cpu = time.monotonic_ns(), time.process_time() - cpu
    return Received(
        ended_ns=ended_ns,
        rows=tally.rows,
        last_id=tally.last_id,
        cpu_seconds=cpu,
        memory_mib=_memory_mib(),
        digest=tally.digest(),
        notes=tally.notes,
    )


def _memory_mib() -> float:
    """Return the most that was ever resident. (`ru_maxrss` would hold what the parent had, too.)"""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status tells no VmHWM")


async def main() -> None:
    """Do what the command line says, with a deadline."""
    venue = msgspec.json.decode(sys.stdin.buffer.readline(), type=Venue)
    async with asyncio.timeout(venue.load.deadline_seconds):
        work = produce if sys.argv[1] == "produce" else receive
        say(msgspec.json.encode(await work(venue)))


if __name__ == "__main__":
    uvloop.run(main())
