"""The receiver's process where something is wrong: frames are lost, or the caller stops for a time.

`python -m benchmarks.impaired_receiving JOB`, JOB as JSON. It prints a line once it is live, one
more when it pauses, goes on when a line comes on its stdin, and ends with a line of figures.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path
from random import Random

import msgspec
import uvloop

from benchmarks.children import job_of
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig, Receiver, ReceiverConfig, State
from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.kafka_config import KafkaConfig

_SAMPLES_MAX = 100_000


class ImpairedJob(msgspec.Struct, frozen=True):
    """What to receive, and what is wrong."""

    chain_id: int
    gap_database: DatabaseConfig
    kafka: KafkaConfig
    until_rows: int
    drop_share: float = 0.0
    """Frames that are lost on the way, drawn independently; heartbeats too."""
    seed: int = 1
    pauses: bool = False
    """Stop after the first run until a line comes on stdin."""


class Impaired(msgspec.Struct, frozen=True):
    """What was handed on, in order. Times are of the monotonic clock, which all processes share."""

    resumed_ns: int
    ended_ns: int
    rows_before: int
    """Handed on before the pause."""
    rows: int
    rows_live: int
    rows_filled: int
    gaps: int
    last_id: int
    memory_live_mib: float
    """Resident when it first had caught up."""
    memory_mib: float
    """The most that was ever resident."""
    cpu_seconds: float
    """Since it went on, or began."""
    samples: list[tuple[int, int]]
    """Times, each with the rows handed on by then, since it went on."""


class LossyFrames:
    """A `FrameSource` that loses frames of one that works."""

    def __init__(self, source: KafkaFrameSource, share: float, seed: int) -> None:
        self._source = source
        self._share = share
        self._random = Random(seed)

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition of the one that works."""
        return self._source.place

    async def start(self) -> None:
        """Start the one that works."""
        await self._source.start()

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return what was not lost. If all was lost, wait on: an empty answer means silence."""
        while True:
            found = await self._source.records(timeout_seconds)
            kept = [record for record in found if self._random.random() >= self._share]
            if kept or not found:
                return kept

    async def close(self) -> None:
        """Close the one that works."""
        await self._source.close()


def _tell(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _tell_live(state: State) -> None:
    if state is State.LIVE:
        _tell(b"live")


def resident_mib() -> float:
    """Return what is resident now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


async def _pause() -> None:
    _tell(b"paused")
    await asyncio.to_thread(sys.stdin.buffer.readline)


async def run(job: ImpairedJob) -> Impaired:
    """Receive until all rows were handed on."""
    reader = GapReader(GapReaderConfig(database=job.gap_database, chain_id=job.chain_id))
    head = (await reader.standing(0)).head
    source = KafkaFrameSource(
        KafkaSourceConfig(kafka=job.kafka, topic=head.topic, partition=head.partition)
    )
    frames = LossyFrames(source, job.drop_share, job.seed) if job.drop_share else source
    # What came while nobody asked is to be read from Kafka: no look at the head before the frames.
    config = ReceiverConfig(chain_id=job.chain_id, poll_after_seconds=30.0 if job.pauses else 1.0)
    rows = rows_before = 0
    memory = 0.0
    samples: list[tuple[int, int]] = []
    async with Receiver(config, frames, reader, on_state=_tell_live) as receiver:
        resumed_ns, cpu = time.monotonic_ns(), time.process_time()
        pauses = job.pauses
        async for received in receiver:
            rows += len(received.events)
            if not memory and receiver.live.is_set():
                memory = resident_mib()
            if pauses and receiver.live.is_set():
                pauses, rows_before = False, rows
                await _pause()
                resumed_ns, cpu = time.monotonic_ns(), time.process_time()
            if len(samples) < _SAMPLES_MAX:
                samples.append((time.monotonic_ns(), rows))
            if rows >= job.until_rows:
                break
        ended_ns = time.monotonic_ns()
        cpu = time.process_time() - cpu
        stats = receiver.stats()
    return Impaired(
        resumed_ns=resumed_ns,
        ended_ns=ended_ns,
        rows_before=rows_before,
        rows=rows,
        rows_live=stats.rows_live,
        rows_filled=stats.rows_filled,
        gaps=stats.gaps,
        last_id=stats.head_delivered,
        memory_live_mib=memory,
        memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        cpu_seconds=cpu,
        samples=samples,
    )


async def main() -> None:
    """Run the job, with a deadline."""
    async with asyncio.timeout(600):
        received = await run(job_of(ImpairedJob))
    _tell(msgspec.json.encode(received))


if __name__ == "__main__":
    uvloop.run(main())
