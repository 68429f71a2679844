"""What a commit costs, what keys cost, and what orders cost that are submitted one by one."""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.chains import Site, connected, draw_chain_id, make_chain
from benchmarks.host import ServerLoad
from benchmarks.load import EVENT_TIME_NS, Figures, Load, order_batches
from benchmarks.rivals import bare
from benchmarks.rivals.engine import OpenSink, sequencer_of, submit_all
from benchmarks.rivals.rival import SQL
from benchmarks.spreads import compared, interleave, ratio
from orderchain.clients.pipeline import Pipeline
from orderchain.seal import COLUMNS
from sequencer import Ack, Order, Sequencer, SequencerConfig, open_sequencer
from sequencer.core import SequencerCore
from sequencer.stores.postgres import PostgresChainStore
from sequencer.stores.session import call, prepare

if TYPE_CHECKING:
    from orderchain.model import Event, Term
    from orderchain.seal import Batch

_Keys = Callable[[int], str]


def _config(site: Site, chain_id: int, **settings: Any) -> SequencerConfig:  # noqa: ANN401
    return SequencerConfig(chain_id=chain_id, database=site.sequencer, kafka=site.kafka, **settings)


async def _rate(sequencer: Sequencer, batches: list[list[Order]]) -> float:
    began = time.perf_counter()
    await submit_all(sequencer, batches)
    return sum(map(len, batches)) / (time.perf_counter() - began)


async def _submit_many(
    site: Site,
    batches: Callable[[], Iterator[list[Order]]],
    batch_rows: int,
    *,
    window: int = 0,
    chain_id: int | None = None,
) -> float:
    """Return orders per second of the embedded sequencer, publishing to Kafka beside it."""
    chain_id = chain_id or await make_chain(site)
    config = _config(site, chain_id, batch_rows_max=batch_rows, key_window_rows=window)
    async with open_sequencer(config) as sequencer:
        return await _rate(sequencer, list(batches()))


# -- commit_path: what does a commit cost with a page per batch, and with a row per order? ---------

_BATCH_ROWS: Final = (100, 1_000, 5_000)
_BATCHES_MAX: Final = 200
_BARE_BATCHES_MAX: Final = 1_000
"""Batches of rows and pages: CPU is counted in steps of 10 ms."""

_PAYLOAD_BYTES: Final = 64
"""As in most runs end to end."""

_SIZE: Final = "SELECT sum(pg_total_relation_size(relid))::float8 FROM pg_partition_tree($1)"
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def commit_path(site: Site, *, repeats: int, orders: int) -> Figures:
    """Compare the ways of storing, and the commit path, by the rows of a batch."""
    result: Figures = {}
    for size in _BATCH_ROWS:
        rows = _Storage(bare.TABLE, bare.COLUMNS, bare.row_bytes)
        pages = _Storage("chain_page", COLUMNS, bare.page_bytes)
        count, most = min(orders, size * _BATCHES_MAX), min(orders, size * _BARE_BATCHES_MAX)
        batches = partial(order_batches, count, size, payload_bytes=_PAYLOAD_BYTES)
        print(f"batch {size}", flush=True)
        figures = await interleave(
            {
                "rows": partial(rows.commits, site, most, size),
                "pages": partial(pages.commits, site, most, size),
                "serial": partial(_serial, site, count, size),
                "pipelined": partial(_pipelined, site, count, size),
                "submit_many": partial(_submit_many, site, batches, size),
            },
            repeats,
        )
        result[f"batch {size}"] = compared(figures, ratio="pages")
        result[f"cost of an order, batch {size}"] = {
            # Without the round that warmed up.
            name: compared({"pages": values[1:], "rows": rows.costs[name][1:]}, ratio="rows")
            for name, values in pages.costs.items()
        }
        result[f"pipelined / serial {size}"] = ratio(figures, "pipelined", "serial")
    return result


class _Storage:
    """A way to store the orders of a commit, and what it cost the server."""

    def __init__(
        self, table: str, columns: Sequence[str], copied: Callable[[int, Sequence[Event]], bytes]
    ) -> None:
        self._table = table
        self._copy = f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT binary)"
        self._copied = copied
        self.costs: dict[str, list[float]] = {"cpu_us": [], "wal_bytes": [], "disk_bytes": []}
        """Per order, one value per run."""

    async def commits(self, site: Site, orders: int, batch_rows: int) -> float:
        """Return orders per second of commits, one after the other, all made before."""
        chain_id = await make_chain(site)
        await bare.make_partition(site, chain_id)
        ready = await self._made(site, chain_id, orders, batch_rows)
        async with connected(site.admin) as connection:
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
        costs = used["postgres_cpu_seconds"] * 1e6, used["wal_mib"] * 2**20, size
        for values, cost in zip(self.costs.values(), costs, strict=True):
            values.append(cost / orders)
        return orders / seconds

    async def _made(
        self, site: Site, chain_id: int, orders: int, batch_rows: int
    ) -> list[tuple[str, bytes]]:
        store, term = await _leading(site, chain_id, batch_rows)
        await store.close()
        core = SequencerCore(term, takeover_skip_ids=0)
        return [
            (f"{_fence(term, batch)};{self._copy}", self._copied(chain_id, batch.events))
            for batch in (core.assemble(b, EVENT_TIME_NS) for b in _orders(orders, batch_rows))
        ]


def _orders(count: int, batch_rows: int) -> list[list[Order]]:
    return list(order_batches(count, batch_rows, payload_bytes=_PAYLOAD_BYTES))


async def _leading(site: Site, chain_id: int, batch_rows: int) -> tuple[PostgresChainStore, Term]:
    """Return the store of a chain, and the term of its new leader."""
    store = PostgresChainStore(_config(site, chain_id, batch_rows_max=batch_rows))
    return store, await store.take_over("bench", await store.look())


def _fence(term: Term, batch: Batch) -> str:
    """Return the compare-and-set and the batch row, as the sequencer sends them."""
    committed_at = _EPOCH_START + timedelta(microseconds=batch.committed_at_us)
    ids = (batch.pid, batch.first_id, batch.last_id, batch.row_count)
    values = (batch.chain_id, term.epoch, term.nonce, *ids, batch.seal, committed_at, 0)
    return call("commit_batch", values)


async def _serial(site: Site, orders: int, batch_rows: int) -> float:
    store, term = await _leading(site, await make_chain(site), batch_rows)
    core = SequencerCore(term, takeover_skip_ids=0)
    batches = _orders(orders, batch_rows)
    began = time.perf_counter()
    for batch in batches:
        pending = await store.begin(core.assemble(batch, time.time_ns()), published_id=0)
        await pending.outcome()
    seconds = time.perf_counter() - began
    await store.close()
    return orders / seconds


async def _pipelined(site: Site, orders: int, batch_rows: int) -> float:
    load = Load(rival="engine", orders=orders, batch_rows=batch_rows)
    batches = _orders(orders, batch_rows)
    async with sequencer_of(site, await make_chain(site), load, sink=OpenSink()) as sequencer:
        return await _rate(sequencer, batches)


# -- key_kinds: what do keys cost the sequencer, by their kind and with many of them present? ------

_WINDOW_ROWS: Final = 10**7


async def key_kinds(site: Site, *, repeats: int, orders: int, present: int) -> Figures:
    """Compare kinds of keys with keys off."""
    filled = await _filled(site, present)

    async def submit(kind: Callable[[], _Keys], chain_id: int | None = None) -> float:
        batches = partial(_keyed, orders, 1_000, kind(), bytes(100))
        return await _submit_many(site, batches, 1_000, window=_WINDOW_ROWS, chain_id=chain_id)

    keys_off = partial(order_batches, orders, 1_000)
    figures = await interleave(
        {
            "keys off": partial(_submit_many, site, keys_off, 1_000),
            "client#number": partial(submit, _client_keys),
            "time-ordered": partial(submit, _time_ordered_keys),
            f"random, {present:,} present": partial(submit, _random_keys, filled),
        },
        repeats,
    )
    return {"keys": compared(figures, ratio="keys off")}


async def _filled(site: Site, rows: int) -> int:
    chain_id = await make_chain(site)
    config = _config(site, chain_id, batch_rows_max=5_000, key_window_rows=_WINDOW_ROWS)
    async with open_sequencer(config) as sequencer:
        for start in range(0, rows, 500_000):
            count = min(500_000, rows - start)
            await submit_all(sequencer, list(_keyed(count, 5_000, _random_keys(), b"")))
    return chain_id


def _keyed(count: int, batch_rows: int, key: _Keys, payload: bytes) -> Iterator[list[Order]]:
    for start in range(0, count, batch_rows):
        numbers = range(start, min(start + batch_rows, count))
        yield [Order(key(n), payload, EVENT_TIME_NS) for n in numbers]


def _client_keys() -> _Keys:
    """Return keys of the form `client#number`, rising; a new series at each call."""
    run = uuid.uuid4().hex[:8]
    return lambda n: f"{run}-{n % 64}#{n}"


def _time_ordered_keys() -> _Keys:
    """Return free-form keys that begin with a time."""
    run = uuid.uuid4().hex[:8]
    return lambda n: f"{time.time_ns():x}-{run}-{n:x}"


def _random_keys() -> _Keys:
    return lambda _: uuid.uuid4().hex


# -- one_by_one: what do orders cost that are submitted one by one, and one that comes alone? ------

_WAITING: Final = 20_000
"""Enough for three batches under way and a fourth to grow."""

_ALONE: Final = 200
_PAUSE_SECONDS: Final = 0.01
"""After it, the previous order is published, and its INSERT is long done."""


async def one_by_one(site: Site, *, repeats: int, orders: int) -> Figures:
    """Submit one by one, and alone."""
    futures = {
        "one future each": partial(_one_by_one, site, orders, _one_future_each),
        "one task each": partial(_one_by_one, site, orders, _one_task_each),
    }
    alone = {"one INSERT": partial(_one_insert, site), "one order": partial(_one_order, site)}
    return {
        "futures": compared(await interleave(futures, repeats), ratio="one future each"),
        "one order": compared(await interleave(alone, repeats), ratio="one INSERT"),
    }


async def _one_by_one(
    site: Site, count: int, submit: Callable[[Sequencer, list[Order]], Awaitable[None]]
) -> float:
    chain_id = await make_chain(site)
    orders = [order for batch in order_batches(count, 5_000) for order in batch]
    async with open_sequencer(_config(site, chain_id, key_window_rows=0)) as sequencer:
        began = time.perf_counter()
        await submit(sequencer, orders)
        return count / (time.perf_counter() - began)


async def _one_future_each(sequencer: Sequencer, orders: list[Order]) -> None:
    """Submit orders that have a future of their own, 20,000 waiting at most."""
    waiting: deque[asyncio.Future[Ack]] = deque()
    for order in orders:
        waiting.append(sequencer.submit_nowait(order.key, order.payload, order.event_time_ns))
        if len(waiting) >= _WAITING:
            await waiting.popleft()
    while waiting:
        await waiting.popleft()


async def _one_task_each(sequencer: Sequencer, orders: list[Order]) -> None:
    """Submit by 20,000 tasks that each await one order after the other."""
    left = iter(orders)

    async def client() -> None:
        for order in left:
            await sequencer.submit(order.key, order.payload, order.event_time_ns)

    await asyncio.gather(*(client() for _ in range(_WAITING)))


async def _one_order(site: Site) -> float:
    """Return the median seconds of one order alone: nothing is under way when it is submitted."""
    async with open_sequencer(_config(site, await make_chain(site))) as sequencer:
        return await _median_seconds(lambda n: sequencer.submit(f"one-{n}", bytes(100)))


async def _one_insert(site: Site) -> float:
    """Return the median seconds of a single INSERT of the same order as a row, as far apart."""
    chain_id = draw_chain_id()
    await bare.make_partition(site, chain_id)
    async with connected(site.sequencer) as connection:
        insert = partial(connection.execute, SQL["rows_insert"], chain_id)
        seconds = await _median_seconds(
            lambda n: insert(n + 1, n, f"one-{n}", EVENT_TIME_NS, bytes(100))
        )
    await bare.drop_partition(site, chain_id)
    return seconds


async def _median_seconds(call: Callable[[int], Awaitable[object]]) -> float:
    times = []
    for n in range(_ALONE):
        began = time.perf_counter()
        await call(n)
        times.append(time.perf_counter() - began)
        await asyncio.sleep(_PAUSE_SECONDS)
    return statistics.median(times)
