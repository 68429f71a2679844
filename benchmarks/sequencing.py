"""The sequencer's process of a benchmark: `python -m benchmarks.sequencing JOB`, JOB as JSON."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from collections import deque

import msgspec
import uvloop

from benchmarks.children import job_of
from benchmarks.impaired_receiving import resident_mib
from benchmarks.workload import order_batches
from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.kafka_config import KafkaConfig
from sequencer import SequencerConfig, open_sequencer

_IN_FLIGHT = 3


class SequencingJob(msgspec.Struct, frozen=True):
    """What to sequence."""

    chain_id: int
    database: DatabaseConfig
    kafka: KafkaConfig
    orders: int
    batch_rows: int
    payload_bytes: int = 100
    orders_per_second: int = 0
    """How fast orders arrive, whatever becomes of them; 0: as fast as they are taken."""
    distinct_orders: int = 0
    """Submit this many repeatedly, keys not compared: for more than memory holds. 0: all."""


class Sequenced(msgspec.Struct, frozen=True):
    """What became of it. Times are of the monotonic clock, which all processes share."""

    began_ns: int
    committed_ns: int
    last_id: int
    memory_mib: float
    cpu_seconds: float
    waits: int
    """Commits that the publish queue held up."""
    waited_seconds: float
    head_published: int
    memories_mib: list[float]
    """Resident, once for each time that all distinct orders were submitted."""


async def run(job: SequencingJob) -> Sequenced:
    """Sequence all orders, one batch per commit, and return when."""
    config = SequencerConfig(
        chain_id=job.chain_id,
        database=job.database,
        kafka=job.kafka,
        batch_rows_max=job.batch_rows,
        **({"key_window_rows": 0} if job.distinct_orders else {}),
    )
    distinct = job.distinct_orders or job.orders
    batches = list(order_batches(distinct, job.batch_rows, payload_bytes=job.payload_bytes))
    gc.freeze()
    memories: list[float] = []
    async with open_sequencer(config) as sequencer:
        began_ns, cpu = time.monotonic_ns(), time.process_time()
        in_flight: deque[asyncio.Task[object]] = deque()
        for number in range(job.orders // job.batch_rows):
            orders = batches[number % len(batches)]
            if not number % len(batches):
                memories.append(resident_mib())
            if job.orders_per_second:
                due_ns = began_ns + number * job.batch_rows * 10**9 // job.orders_per_second
                await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
            in_flight.append(asyncio.create_task(sequencer.submit_many(orders)))
            await asyncio.sleep(0)
            if len(in_flight) >= _IN_FLIGHT:
                await in_flight.popleft()
        await asyncio.gather(*in_flight)
        committed_ns = time.monotonic_ns()
        last_id = sequencer.stats().head_persisted
    stats = sequencer.stats()
    return Sequenced(
        began_ns,
        committed_ns,
        last_id,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        time.process_time() - cpu,
        stats.publish_waits,
        stats.publish_waited_seconds,
        stats.head_published,
        memories,
    )


if __name__ == "__main__":
    done = uvloop.run(run(job_of(SequencingJob)))
    sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")
