"""A sequencer and a receiver, each a process of its own, where something is wrong.

Frames are lost, the caller stops for a time, Kafka never brings what the database holds, or orders
come at the highest rate. The receiver writes `live` whenever it is, and `paused` when it stops.
Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from benchmarks.chains import (
    SQL,
    Site,
    connected,
    empty_chain,
    generate_chain,
    grow_chain,
    make_chain,
)
from benchmarks.load import Figures, order_batches
from benchmarks.processes import call, freeze, next_line, resident_mib, say, serve
from benchmarks.rivals.engine import IN_FLIGHT, reader_and_source
from benchmarks.rivals.rival import NotWhole
from benchmarks.spreads import compared, in_rounds, interleave, spreads
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig, Receiver, ReceiverConfig, State
from sequencer import SequencerConfig, open_sequencer

_SAMPLES_MAX: Final = 100_000
_FRAME_ROWS: Final = 1_000


async def _both(
    site: Site, orders: int, sent: dict[str, Any], taken: dict[str, Any]
) -> tuple[Figures, Figures]:
    """Sequence once the receiver is live. Raises RuntimeError when an order was not handed on."""
    chain: dict[str, Any] = {"site": site, "chain_id": await make_chain(site)}
    async with _receiving(**chain, until_rows=orders, **taken) as receiver:
        await receiver.expect(b"live")
        async with _sequencing(**chain, orders=orders, **sent) as sequencer:
            sequenced, received = await sequencer.result(), await receiver.result()
    heads = {received["stats"]["head_delivered"], sequenced["stats"]["head_persisted"]}
    if received["rows"] != orders or len(heads) > 1:
        raise RuntimeError(f"sent {orders}, received {received['rows']}")
    return sequenced, received


# -- loss: what is left of the end-to-end rate when frames are lost? -------------------------------


async def loss(site: Site, *, repeats: int, orders: int, share: float) -> Figures:
    """Run both arms with batches of either size."""
    return {
        "payload_bytes": 100,
        "by_batch_rows": {
            str(rows): await _loss(site, repeats, orders, rows, share) for rows in (100, 1_000)
        },
    }


async def _loss(site: Site, repeats: int, orders: int, batch_rows: int, share: float) -> Figures:
    gaps: dict[str, list[int]] = {"clean": [], "lossy": []}

    async def run(name: str, share: float) -> float:
        faults = {"drop_share": share, "seed": 1 + sum(map(len, gaps.values()))}
        sequenced, received = await _both(site, orders, {"batch_rows": batch_rows}, faults)
        gaps[name].append(received["stats"]["gaps"])
        took_ns: int = received["ended_ns"] - sequenced["began_ns"]
        return orders / took_ns * 1e9

    arms = {"clean": partial(run, "clean", 0.0), "lossy": partial(run, "lossy", share)}
    found = compared(await interleave(arms, repeats), to_clean="clean")
    return {name: {**figures, "gaps": gaps[name]} for name, figures in found.items()}


# -- catch_up: how fast does a receiver read on from Kafka, alone, and after its caller stopped? ---

_PAUSE_SECONDS: Final = 10.0
_CAUGHT_UP_SECONDS: Final = 0.25
"""A receiver this far behind the arrivals has caught up: a commit and its way through Kafka."""


async def catch_up(site: Site, *, repeats: int, orders: int, arrivals: int) -> Figures:
    """Let receivers catch up, alone and behind."""
    return {
        "frame_rows": _FRAME_ROWS,
        "payload_bytes": 100,
        "pause_seconds": _PAUSE_SECONDS,
        "alone": spreads(await _alone(site, orders, repeats)),
        "behind": await in_rounds(partial(_behind, site, arrivals), repeats),
    }


async def _alone(site: Site, orders: int, repeats: int) -> list[dict[str, float]]:
    """Return rows per second, by the clock and by the processor's time, of a topic that is full."""
    chain: dict[str, Any] = {"site": site, "chain_id": await make_chain(site)}
    rates = []
    async with AsyncExitStack() as stack:
        receivers = [_receiving(**chain, until_rows=orders, pauses=True) for _ in range(repeats)]
        for receiver in receivers:
            await stack.enter_async_context(receiver)
        for receiver in receivers:
            await receiver.expect(b"live")
        async with _sequencing(**chain, orders=orders) as sequencer:
            await sequencer.result()
        for receiver in receivers:
            await receiver.expect(b"paused")
            await receiver.tell(b"go on")
            found = await receiver.result()
            rows, live = found["rows"] - found["rows_before"], found["stats"]["rows_live"]
            if found["rows"] != orders or live != orders:
                raise RuntimeError(f"{live} of {orders} rows came from Kafka")
            seconds = (found["ended_ns"] - found["resumed_ns"]) / 1e9
            by_cpu = rows / found["cpu_seconds"]
            rates.append({"rows_per_second": rows / seconds, "rows_per_cpu_second": by_cpu})
    return rates


async def _behind(site: Site, arrivals: int) -> dict[str, float]:
    """Return how fast a pause's backlog was worked off while `arrivals` orders per second came."""
    orders = int(arrivals * (_PAUSE_SECONDS + 10)) // _FRAME_ROWS * _FRAME_ROWS
    chain: dict[str, Any] = {"site": site, "chain_id": await make_chain(site)}
    async with _receiving(**chain, until_rows=orders, pauses=True) as receiver:
        await receiver.expect(b"live")
        async with _sequencing(**chain, orders=orders, orders_per_second=arrivals) as sequencer:
            await receiver.expect(b"paused")
            await asyncio.sleep(_PAUSE_SECONDS)
            await receiver.tell(b"go on")
            sequenced, received = await sequencer.result(), await receiver.result()
    if received["rows"] != orders:
        raise RuntimeError(f"{received['rows']} of {orders} rows")
    began_ns, resumed_ns, before = (
        sequenced["began_ns"], received["resumed_ns"], received["rows_before"],
    )  # fmt: skip
    for at_ns, rows in received["samples"]:
        due = min(orders, (at_ns - began_ns) * arrivals / 1e9)
        if at_ns > resumed_ns and rows >= due - _CAUGHT_UP_SECONDS * arrivals:
            seconds = (at_ns - resumed_ns) / 1e9
            rate = (rows - before) / seconds
            return {
                "backlog": (resumed_ns - began_ns) * arrivals / 1e9 - before,
                "seconds": seconds,
                "rows_per_second": rate,
                "to_arrivals": rate / arrivals,
                "live_share": received["stats"]["rows_live"] / orders,
                # It shows whether the orders arrived at the intended rate.
                "arrivals": orders / (sequenced["committed_ns"] - began_ns) * 1e9,
            }
    raise RuntimeError("never caught up")


# -- large_gap: how much memory does a gap far larger than a page cost a receiver? -----------------

_FIRST_ROWS: Final = 1_000
"""Rows before the gap, one page. The pages that a fill holds count as growth."""


async def large_gap(site: Site, *, repeats: int, rows: int) -> Figures:
    """Fill gaps of `rows`."""
    return {"payload_bytes": 100, **await in_rounds(partial(_large_gap, site, rows), repeats)}


async def _large_gap(site: Site, rows: int) -> dict[str, float]:
    """Return what a gap of `rows` cost. Raises RuntimeError when a row did not come."""
    chain_id = await generate_chain(site, _FIRST_ROWS)
    last_id = _FIRST_ROWS + rows
    async with _receiving(site=site, chain_id=chain_id, until_rows=last_id) as receiver:
        await receiver.expect(b"live")
        await grow_chain(site, chain_id, _FIRST_ROWS, last_id)
        found = await receiver.result()
    filled = found["stats"]["rows_filled"]
    if found["rows"] != last_id or filled != rows:
        raise RuntimeError(f"{filled} of {rows} rows were filled")
    began_ns = next(at for at, handed_on in found["samples"] if handed_on > _FIRST_ROWS)
    before, most = found["memory_live_mib"], found["memory_mib"]
    return {
        "memory_before_mib": before,
        "memory_most_mib": most,
        "growth_mib": most - before,
        "rows_per_second": rows / (found["ended_ns"] - began_ns) * 1e9,
    }


# -- full_rate: does everything keep up at the highest rate? ---------------------------------------

_DISTINCT_ORDERS: Final = 500_000
_PAYLOAD_BYTES: Final = 60
_FILLED_SHARE_MAX: Final = 0.002


async def full_rate(site: Site, *, orders: int) -> Figures:
    """Submit `orders` with batches of either size."""
    found = {}
    for batch_rows in (1_000, 5_000):
        found[str(batch_rows)] = await _full_rate(site, batch_rows, orders)
        print(batch_rows, found[str(batch_rows)], flush=True)
    return {"payload_bytes": _PAYLOAD_BYTES, "by_batch_rows": found}


async def _full_rate(site: Site, batch_rows: int, orders: int) -> dict[str, Any]:
    """Return what became of `orders`. Raises RuntimeError where one was skipped or filled."""
    repeated = {"payload_bytes": _PAYLOAD_BYTES, "distinct_orders": _DISTINCT_ORDERS}
    sequenced, received = await _both(site, orders, {"batch_rows": batch_rows, **repeated}, {})
    sent, taken = sequenced["stats"], received["stats"]
    async with connected(site.auditor) as connection:
        skips = await connection.fetchval(SQL["skipped"], sent["chain_id"])
    await empty_chain(site, sent["chain_id"])
    # A new leader's first frames come from the database: its key is not known before.
    if skips or taken["rows_filled"] > orders * _FILLED_SHARE_MAX:
        filled = f"{taken['rows_filled']} rows of {orders} filled"
        raise RuntimeError(f"{skips} ranges skipped, {filled}")
    # The first rounds are left out: pools and buffers fill.
    memories = sequenced["memories_mib"][len(sequenced["memories_mib"]) // 4 :]
    half = len(memories) // 2
    seconds = (received["ended_ns"] - sequenced["began_ns"]) / 1e9
    return {
        "seconds": seconds,
        "orders_per_second": orders / seconds,
        "live_share": taken["rows_live"] / orders,
        "publish_waits": sent["publish_waits"],
        "publish_waited_seconds": sent["publish_waited_seconds"],
        "sequencer_memory_mib": [
            statistics.median(part) for part in (memories[:half], memories[half:])
        ],
        "sequencer_memory_most_mib": sequenced["memory_mib"],
        "receiver_memory_mib": [received["memory_live_mib"], received["memory_mib"]],
    }


# -- the processes ---------------------------------------------------------------------------------


async def sequence(
    site: Site,
    chain_id: int,
    orders: int,
    *,
    batch_rows: int = _FRAME_ROWS,
    payload_bytes: int = 100,
    orders_per_second: int = 0,
    distinct_orders: int = 0,
) -> dict[str, Any]:
    """Sequence all orders, one batch per commit, and return when.

    They arrive at `orders_per_second`, whatever becomes of them, or as fast as they are taken. With
    `distinct_orders`, so many are submitted repeatedly, keys not compared: more than memory holds.
    `memories_mib` is what was resident, once for each time that all of them were submitted.
    """
    window: dict[str, Any] = {"key_window_rows": 0} if distinct_orders else {}
    config = SequencerConfig(
        chain_id=chain_id,
        database=site.sequencer,
        kafka=site.kafka,
        batch_rows_max=batch_rows,
        **window,
    )
    distinct = distinct_orders or orders
    batches = list(order_batches(distinct, batch_rows, payload_bytes=payload_bytes))
    freeze()
    memories: list[float] = []
    async with open_sequencer(config) as sequencer:
        began_ns = time.monotonic_ns()
        in_flight: deque[asyncio.Task[object]] = deque()
        for number in range(orders // batch_rows):
            if not number % len(batches):
                memories.append(resident_mib("VmRSS"))
            if orders_per_second:
                due_ns = began_ns + number * batch_rows * 10**9 // orders_per_second
                await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
            batch = batches[number % len(batches)]
            in_flight.append(asyncio.create_task(sequencer.submit_many(batch)))
            await asyncio.sleep(0)
            if len(in_flight) >= IN_FLIGHT:
                await in_flight.popleft()
        await asyncio.gather(*in_flight)
        committed_ns = time.monotonic_ns()
    return {
        "began_ns": began_ns,
        "committed_ns": committed_ns,
        "memory_mib": resident_mib(),
        "memories_mib": memories,
        "stats": msgspec.to_builtins(sequencer.stats()),
    }


class LossyFrames(KafkaFrameSource):
    """A `FrameSource` that loses frames."""

    def __init__(self, config: KafkaSourceConfig, share: float, seed: int) -> None:
        super().__init__(config)
        self._share = share
        self._random = Random(seed)

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return what was not lost. If all was lost, wait on: an empty answer means silence."""
        while True:
            found = await super().records(timeout_seconds)
            kept = [record for record in found if self._random.random() >= self._share]
            if kept or not found:
                return kept


async def receive(
    site: Site,
    chain_id: int,
    until_rows: int,
    *,
    drop_share: float = 0.0,
    seed: int = 1,
    pauses: bool = False,
    freezes: bool = False,
) -> dict[str, Any]:
    """Receive until all rows were handed on. Raises NotWhole where they do not follow.

    The share `drop_share` of the frames is lost on the way, drawn independently; heartbeats too. If
    it `pauses`, it stops after the first run until a line comes; `rows_before` were handed on by
    then. If it `freezes`, what was made until it is live is kept from the garbage collector.
    `samples` are times, each with the rows handed on by then, since it went on; `memory_live_mib`
    is what was resident when it first had caught up, `memory_mib` the most ever.
    """
    reader, source = await reader_and_source(site, chain_id)
    frames = LossyFrames(source, drop_share, seed) if drop_share else KafkaFrameSource(source)
    # What came while nobody asked is to be read from Kafka: no look at the head before the frames.
    config = ReceiverConfig(chain_id=chain_id, poll_after_seconds=30.0 if pauses else 1.0)
    rows = rows_before = last_id = 0
    memory = 0.0
    samples: list[tuple[int, int]] = []

    def tell_live(state: State) -> None:
        if state is State.LIVE:
            if freezes:
                freeze()
            say(b"live")

    async with Receiver(config, frames, reader, on_state=tell_live) as receiver:
        resumed_ns, cpu = time.monotonic_ns(), time.process_time()
        async for run in receiver:
            rows += len(run.events)
            if run.events[0].pid != last_id:
                raise NotWhole(f"order {run.events[0].id} follows {last_id}")
            last_id = run.last_id
            if not memory and receiver.live.is_set():
                memory = resident_mib("VmRSS")
            if pauses and receiver.live.is_set():
                pauses, rows_before = False, rows
                say(b"paused")
                await next_line()
                resumed_ns, cpu = time.monotonic_ns(), time.process_time()
            if len(samples) < _SAMPLES_MAX:
                samples.append((time.monotonic_ns(), rows))
            if rows >= until_rows:
                break
        ended_ns, cpu = time.monotonic_ns(), time.process_time() - cpu
        stats = msgspec.to_builtins(receiver.stats())
    return {
        "resumed_ns": resumed_ns,
        "ended_ns": ended_ns,
        "rows_before": rows_before,
        "rows": rows,
        "memory_live_mib": memory,
        "memory_mib": resident_mib(),
        "cpu_seconds": cpu,
        "samples": samples,
        "stats": stats,
    }


_sequencing = partial(call, sequence, keeps_errors=False)
_receiving = partial(call, receive, keeps_errors=False)

if __name__ == "__main__":
    serve(sequence, receive)
