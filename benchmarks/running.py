"""Runs one load through one rival, in processes of its own, and proves it whole."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from benchmarks.ends import End, RunFailed
from benchmarks.load import Load, Produced, Received, Venue
from benchmarks.rivals import rival_of
from benchmarks.rivals.rival import NotWhole, digest_of
from benchmarks.server_load import ServerLoad
from benchmarks.workload import order_batches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from benchmarks.chains import Site
    from benchmarks.question import Arm, Figures, Line

_WORKER = "benchmarks.worker"


async def run_load(
    site: Site, load: Load, *, before: Callable[[], Awaitable[None]] | None = None
) -> dict[str, float]:
    """Run `load` and return its figures. Raises RunFailed, NotWhole, TimeoutError.

    `before` is awaited once both ends are ready: the timed part begins when it returns.
    """
    rival = rival_of(load.rival)
    place = await rival.prepare(site, load)
    venue = Venue(site=site, load=load, place=place)
    try:
        async with asyncio.timeout(load.deadline_seconds):
            figures = await _run(venue, before)
            stored = await rival.stored(venue)
        if stored.rows != load.all_orders:
            raise NotWhole(f"{stored.rows} orders are stored of {load.all_orders}")
        return figures
    finally:
        await rival.clean_up(venue)


async def run_arm(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Run the load of an arm: what most questions do. Raises as `run_load`."""
    if arm.load is None:
        raise RunFailed(f"{arm.name} has no load")
    return {**await run_load(site, arm.load)}


async def _run(venue: Venue, before: Callable[[], Awaitable[None]] | None) -> dict[str, float]:
    """Return the figures of the timed part."""
    load = venue.load
    has_receiver = load.stage == "deliver"
    async with _ends(venue, has_receiver=has_receiver) as (producing, receiving):
        if receiving is not None:
            await receiving.expect(b"listening")
        await producing.start(msgspec.json.encode(venue))
        await producing.expect(b"ready")
        if receiving is not None:
            await receiving.expect(b"ready")
        if before is not None:
            await before()
        servers = await ServerLoad.now(venue.site)
        await producing.tell(b"go\n")
        produced = await producing.result(Produced)
        received = None if receiving is None else await receiving.result(Received)
        used = (await ServerLoad.now(venue.site)).since(servers)
    return {**_figures(load, produced, received), **used}


def _figures(load: Load, produced: Produced, received: Received | None) -> dict[str, float]:
    def rate(until_ns: int) -> float:
        return load.orders / (until_ns - produced.began_ns) * 1e9

    figures = {
        "orders": float(load.orders),
        "persisted_per_second": rate(produced.persisted_ns),
        "producer_cpu_seconds": produced.cpu_seconds,
        "producer_memory_mib": produced.memory_mib,
    }
    if load.stage != "persist":
        figures["published_per_second"] = rate(produced.published_ns)
    if received is not None:
        if received.rows != load.all_orders:
            raise NotWhole(f"{received.rows} orders were handed on of {load.all_orders}")
        if load.is_kept and received.digest != _sent_digest(load):
            raise NotWhole("other orders were handed on than were sent")
        # Never faster than durable: a receiver may be ahead of the sender's own report.
        figures |= {
            "delivered_per_second": rate(max(received.ended_ns, produced.persisted_ns)),
            "receiver_cpu_seconds": received.cpu_seconds,
            "receiver_memory_mib": received.memory_mib,
            **received.notes,
        }
    return figures


def _sent_digest(load: Load) -> str:
    batches = order_batches(
        load.all_orders, load.batch_rows, payload_bytes=load.payload_bytes, seed=load.seed
    )
    return digest_of([order for batch in batches for order in batch])


@asynccontextmanager
async def _ends(venue: Venue, *, has_receiver: bool) -> AsyncIterator[tuple[End, End | None]]:
    """Start the receiving end, if there is one; leave no process running."""
    producing = End(_WORKER, "produce")
    receiving = End(_WORKER, "receive") if has_receiver else None
    try:
        if receiving is not None:
            await receiving.start(msgspec.json.encode(venue))
        yield producing, receiving
    finally:
        await producing.end()
        if receiving is not None:
            await receiving.end()
