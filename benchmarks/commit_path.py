"""What do ids, pids, fence, seal and batch row cost a commit?

Every arm writes the same rows into a chain of its own, one commit a batch:

- bare: COPY of bytes that were made before, nothing else;
- serial: the sequencer's commit path, one batch after the other;
- pipelined: the sequencer, three calls in flight, with a broker that takes everything at once;
- submit_many: the sequencer as it is embedded, with a real broker on the same machine.

    python -m benchmarks.commit_path [--repeats 5]
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import asyncpg

from benchmarks.arms import interleave, ratio
from benchmarks.chains import Site, make_chain
from benchmarks.committing import Figures, config_of, run, submit_all, submit_many, tell
from benchmarks.workload import EVENT_TIME_NS, order_batches
from orderchain.clock import SystemClock
from orderchain.limits import FRAME_BYTES_MAX
from orderchain.row_image import COLUMNS, COPY_HEADER, COPY_TRAILER
from sequencer import Sequencer
from sequencer.core import SequencerCore
from sequencer.key_store import PostgresKeyStore
from sequencer.lease import PostgresLease
from sequencer.store import PostgresChainStore

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

BATCH_ROWS = (100, 1_000, 5_000)


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


class OpenSink:
    """A broker that is always done: what the commit path does, and no more, is measured."""

    frame_bytes_max = FRAME_BYTES_MAX

    async def start(self, topic: str, partition: int) -> None:
        """Accept any topic."""

    async def last_records(self, topic: str, partition: int, at_most: int) -> list[bytes | None]:
        """There are none."""
        return []

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


async def measure(site: Site, arguments: argparse.Namespace) -> Figures:
    """Compare the commit path with a bare COPY, by the rows of a batch."""
    result: Figures = {}
    for size in BATCH_ROWS:
        count = min(arguments.orders, size * 200)
        figures = await interleave(
            {
                "bare": lambda size=size, count=count: bare(site, count, size),
                "serial": lambda size=size, count=count: serial(site, count, size),
                "pipelined": lambda size=size, count=count: pipelined(site, count, size),
                "submit_many": lambda size=size, count=count: submit_many(site, count, size),
            },
            arguments.repeats,
        )
        result[f"batch {size}"] = tell(f"batch {size}", figures, "bare")
        against = ratio(figures, "pipelined", "serial")
        result[f"pipelined / serial {size}"] = against
        print(f"batch {size}: pipelined / serial {against['median']:.2f}", flush=True)
    return result


if __name__ == "__main__":
    run("commit_path", __doc__ or "", measure)
