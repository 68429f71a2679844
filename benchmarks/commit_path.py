"""What does a commit cost with a page per batch, and with a row per order; and what is ours of it?

Every arm writes the same orders into a chain of its own, one commit a batch:

- rows: the transaction of a commit (fence, batch row, COPY) with a row per order, all of it made
  before; one after the other;
- pages: the same with pages, into the engine's own table;
- serial: the sequencer's commit path, which makes ids, links, seal and pages, too;
- pipelined: the sequencer, three calls in flight, with a broker that takes everything at once;
- submit_many: the sequencer as it is embedded, with a real broker on the same machine.

Of rows and pages also: the server's CPU, its log, and its disk, per order.

    python -m benchmarks.commit_path [--repeats 5]
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.arms import interleave, ratio
from benchmarks.chains import Site, connect_to, make_chain
from benchmarks.committing import Figures, config_of, run, submit_all, submit_many, tell
from benchmarks.rivals import bare_pages, order_rows
from benchmarks.rivals.engine import OpenSink
from benchmarks.server_load import ServerLoad
from benchmarks.workload import EVENT_TIME_NS, order_batches
from orderchain.clients.pipeline import Pipeline
from orderchain.clock import SystemClock
from orderchain.seal import COLUMNS
from sequencer import Sequencer
from sequencer.core import SequencerCore
from sequencer.leadership import PostgresLease
from sequencer.stores.keys import PostgresKeyStore
from sequencer.stores.postgres import PostgresChainStore
from sequencer.stores.session import call, prepare

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from orderchain.batch import Batch, Term
    from orderchain.model import Event
    from sequencer import Order

BATCH_ROWS: Final = (100, 1_000, 5_000)
BATCHES_MAX: Final = 200
BARE_BATCHES_MAX: Final = 1_000
"""Batches of rows and pages: CPU is counted in steps of 10 ms."""

PAYLOAD_BYTES: Final = 64
"""As in most runs end to end."""

_SIZE: Final = "SELECT sum(pg_total_relation_size(relid))::float8 FROM pg_partition_tree($1)"
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Storage:
    """A way to store the orders of a commit, and what it cost the server."""

    def __init__(
        self, table: str, columns: Sequence[str], copy_bytes: Callable[[int, list[Event]], bytes]
    ) -> None:
        self._table = table
        self._copy = f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT binary)"
        self._copy_bytes = copy_bytes
        self.costs: dict[str, list[float]] = {}
        """Per order, one value per run: `cpu_us`, `wal_bytes`, `disk_bytes`."""

    async def commits(self, site: Site, orders: int, batch_rows: int) -> float:
        """Return orders per second of commits, one after the other, all made before."""
        chain_id = await make_chain(site)
        await order_rows.make_partition(site, chain_id)
        ready = await self._made(site, chain_id, orders, batch_rows)
        connection = await connect_to(site.admin)
        try:
            await prepare(connection)
            # No checkpoint falls into the run, and each run has the same pages to log whole.
            await connection.execute("CHECKPOINT")
            table = f"{self._table}_{chain_id}"
            size = await connection.fetchval(_SIZE, table)
            before = await ServerLoad.now(site)
            pipeline = Pipeline(connection)
            began = time.perf_counter()
            for query, rows in ready:
                await pipeline.send(query, [rows])
            seconds = time.perf_counter() - began
            await pipeline.idle()
            used = (await ServerLoad.now(site)).since(before)
            size = await connection.fetchval(_SIZE, table) - size
        finally:
            await connection.close()
        for name, value in (
            ("cpu_us", used["postgres_cpu_seconds"] * 1e6),
            ("wal_bytes", used["wal_mib"] * 2**20),
            ("disk_bytes", size),
        ):
            self.costs.setdefault(name, []).append(value / orders)
        return orders / seconds

    async def _made(
        self, site: Site, chain_id: int, orders: int, batch_rows: int
    ) -> list[tuple[str, bytes]]:
        """Return every transaction: its statements, and the bytes of its COPY."""
        store = PostgresChainStore(config_of(site, chain_id, batch_rows_max=batch_rows))
        term = await store.take_over("bench", await store.look())
        await store.close()
        core = SequencerCore(term, takeover_skip_ids=0)
        return [
            (f"{_fence(term, batch)};{self._copy}", self._copy_bytes(chain_id, batch.events))
            for batch in (core.assemble(b, EVENT_TIME_NS) for b in orders_of(orders, batch_rows))
        ]


def orders_of(count: int, batch_rows: int) -> Iterator[list[Order]]:
    """Yield the same orders to every arm."""
    return order_batches(count, batch_rows, payload_bytes=PAYLOAD_BYTES)


def _fence(term: Term, batch: Batch) -> str:
    """Return the compare-and-set and the batch row, as the sequencer sends them."""
    committed_at = _EPOCH_START + timedelta(microseconds=batch.committed_at_us)
    ids = (batch.pid, batch.first_id, batch.last_id, batch.row_count)
    values = (batch.chain_id, term.epoch, term.nonce, *ids, batch.seal, committed_at, 0)
    return call("commit_batch", values)


async def serial(site: Site, orders: int, batch_rows: int) -> float:
    """Return rows per second of the commit path, one batch after the other."""
    chain_id = await make_chain(site)
    store = PostgresChainStore(config_of(site, chain_id, batch_rows_max=batch_rows))
    term = await store.take_over("bench", await store.look())
    core = SequencerCore(term, takeover_skip_ids=0)
    batches = list(orders_of(orders, batch_rows))
    began = time.perf_counter()
    for batch in batches:
        pending = await store.begin(core.assemble(batch, time.time_ns()), published_id=0)
        await pending.outcome()
    seconds = time.perf_counter() - began
    await store.close()
    return orders / seconds


async def pipelined(site: Site, orders: int, batch_rows: int) -> float:
    """Return orders per second of the sequencer without a broker."""
    chain_id = await make_chain(site)
    config = config_of(site, chain_id, batch_rows_max=batch_rows, key_window_rows=0)
    batches = list(orders_of(orders, batch_rows))
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
    """Compare the ways of storing, and the commit path, by the rows of a batch."""
    result: Figures = {}
    for size in BATCH_ROWS:
        rows = Storage(order_rows.TABLE, order_rows.COLUMNS, order_rows.copy_bytes)
        pages = Storage("chain_page", COLUMNS, bare_pages.copy_bytes)
        count = min(arguments.orders, size * BATCHES_MAX)
        bare = min(arguments.orders, size * BARE_BATCHES_MAX)
        figures = await interleave(
            {
                "rows": partial(rows.commits, site, bare, size),
                "pages": partial(pages.commits, site, bare, size),
                "serial": partial(serial, site, count, size),
                "pipelined": partial(pipelined, site, count, size),
                "submit_many": partial(submit_many, site, count, size, payload_bytes=PAYLOAD_BYTES),
            },
            arguments.repeats,
        )
        result[f"batch {size}"] = tell(f"batch {size}", figures, "pages")
        result[f"cost of an order, batch {size}"] = _costs(size, rows, pages)
        against = ratio(figures, "pipelined", "serial")
        result[f"pipelined / serial {size}"] = against
        print(f"batch {size}: pipelined / serial {against['median']:.2f}", flush=True)
    return result


def _costs(size: int, rows: Storage, pages: Storage) -> Figures:
    """Print and return what the server spent per order, without the round that warmed up."""
    found: Figures = {}
    for name in pages.costs:
        both = {"pages": pages.costs[name][1:], "rows": rows.costs[name][1:]}
        found[name] = tell(f"batch {size} {name}", both, "rows")
    return found


if __name__ == "__main__":
    run("commit_path", __doc__ or "", measure)
