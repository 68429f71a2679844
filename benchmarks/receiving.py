"""The receiver's process of a benchmark: `python -m benchmarks.receiving JOB`, JOB as JSON.

It prints a line once it is live, and ends with a line of figures when all rows were handed on.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time

import msgspec
import uvloop

from gapfill import GapReader, GapReaderConfig
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig, Receiver, ReceiverConfig, State


class ReceivingJob(msgspec.Struct, frozen=True):
    """What to receive."""

    chain_id: int
    gap_database: str
    kafka: str
    orders: int


class Received(msgspec.Struct, frozen=True):
    """What was handed on, in order."""

    ended_ns: int
    rows: int
    rows_live: int
    last_id: int
    memory_mib: float
    cpu_seconds: float


def _tell_live(state: State) -> None:
    if state is State.LIVE:
        sys.stdout.buffer.write(b"live\n")
        sys.stdout.buffer.flush()


async def run(job: ReceivingJob) -> Received:
    """Receive until all orders were handed on."""
    reader = GapReader(GapReaderConfig(database=job.gap_database, chain_id=job.chain_id))
    head = (await reader.standing(0)).head
    source = KafkaFrameSource(
        KafkaSourceConfig(bootstrap_servers=job.kafka, topic=head.topic, partition=head.partition)
    )
    config = ReceiverConfig(chain_id=job.chain_id)
    rows = 0
    async with Receiver(config, source, reader, on_state=_tell_live) as receiver:
        cpu = time.process_time()
        async for received in receiver:
            rows += len(received.events)
            if rows >= job.orders:
                break
        ended_ns = time.monotonic_ns()
        stats = receiver.stats()
    return Received(
        ended_ns,
        rows,
        stats.rows_live,
        stats.head_delivered,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        time.process_time() - cpu,
    )


async def main() -> None:
    """Run the job of the command line, with a deadline."""
    async with asyncio.timeout(600):
        received = await run(msgspec.json.decode(sys.argv[1], type=ReceivingJob))
    sys.stdout.buffer.write(msgspec.json.encode(received) + b"\n")


if __name__ == "__main__":
    uvloop.run(main())
