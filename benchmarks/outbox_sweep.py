"""Does the sweep cost more when the tables hold a long history, and how late do messages come?

- sweep: a round that finds nothing, and one that claims 1,000 deliveries, with no finished row and
  with 10^6 of them;
- latency: from the begin of the business transaction to the consumer's handler, at 1,000 messages a
  second, each in a transaction of its own.

    python -m benchmarks.outbox_sweep [--repeats 5 --finished 1000000 --seconds 10]
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import asyncpg

import outbox
from benchmarks.arms import interleave
from benchmarks.committing import Figures, run, tell
from benchmarks.outbox_cycle import consumer_process, first_message
from benchmarks.outbox_site import PAYLOAD, OutboxSite, make_outbox
from outbox import Message, Relay, RelayConfig, draw_message_ids

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from benchmarks.chains import Site

ROUNDS = 200
CLAIMED = 1_000


async def with_history(site: Site, finished: int) -> OutboxSite:
    """Make an outbox with so many finished messages."""
    place = await make_outbox(site)
    connection = await asyncpg.connect(place.database)
    for first in range(0, finished, 10_000):
        ids = draw_message_ids(min(10_000, finished - first))
        messages = [Message(message_id, "bench", PAYLOAD) for message_id in ids]
        async with connection.transaction():
            await outbox.add_many(connection, messages)
            await connection.execute(
                "WITH gone AS (DELETE FROM outbox_pending RETURNING *) "
                "INSERT INTO outbox_done (message_id, consumer, destination, status, send_count) "
                "SELECT message_id, consumer, destination, 2, 1 FROM gone"
            )
    await connection.execute("VACUUM ANALYZE")
    await connection.close()
    return place


async def idle_round(relay: Relay) -> float:
    """Return the seconds of a sweep that finds nothing."""
    began = time.perf_counter()
    for _ in range(ROUNDS):
        await relay.sweep(everything=False)
    return (time.perf_counter() - began) / ROUNDS


async def full_round(relay: Relay, place: OutboxSite) -> float:
    """Return the seconds of a sweep that claims `CLAIMED` deliveries; their sends are not in it."""
    connection = await asyncpg.connect(place.database)
    messages = [Message(each, "bench", PAYLOAD) for each in draw_message_ids(CLAIMED)]
    async with connection.transaction():
        await outbox.add_many(connection, messages)
        # Nobody is to be woken: the sweep is measured here.
        later = "UPDATE outbox_pending SET next_send_at = now() + interval '1 hour'"
        await connection.execute(later)
    await asyncio.sleep(0.2)
    await connection.execute("UPDATE outbox_pending SET next_send_at = now()")
    began = time.perf_counter()
    if await relay.sweep(everything=False) != CLAIMED:
        raise RuntimeError("somebody else has claimed")
    seconds = time.perf_counter() - began
    await relay.settle()
    await connection.execute("DELETE FROM outbox_pending")
    await connection.close()
    return seconds


async def latencies(site: Site, seconds: int, rate: int, *, hands_over: bool) -> list[float]:
    """Return the seconds from begin of the transaction to handler of each message, sorted."""
    place = await make_outbox(site)
    config = RelayConfig(
        database=place.database, kafka=place.kafka, group=f"{place.destination.topic}.relay"
    )
    business = await asyncpg.connect(place.database)
    found: list[float] = []
    count = seconds * rate
    async with consumer_process(place, "timed") as lines, Relay(config) as relay:

        async def collect() -> None:
            while len(found) < count:
                found.append(int(await lines.readline()) / 1e9)

        await first_message(relay, business)
        await lines.readline()  # its time tells nothing
        collecting = asyncio.create_task(collect())
        began = time.monotonic()
        for n in range(count):
            await asyncio.sleep(max(began + n / rate - time.monotonic(), 0))
            payload = time.monotonic_ns().to_bytes(8, "big") + PAYLOAD
            if hands_over:
                async with relay.transaction(business) as transaction:
                    await transaction.add("bench", payload)
            else:
                async with business.transaction():
                    await outbox.add(business, "bench", payload)
        async with asyncio.timeout(60):
            await collecting
    await business.close()
    return sorted(found[count // 10 :])


def percentiles(values: list[float]) -> dict[str, float]:
    """Return what is told of latencies, in milliseconds."""
    at = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    told = {name: values[int(len(values) * share)] * 1e3 for name, share in at.items()}
    return told | {"max": values[-1] * 1e3}


async def measure(site: Site, arguments: argparse.Namespace) -> Figures:
    """Measure sweeps with and without history, and latencies."""
    places = {
        "no history": await with_history(site, 0),
        "with history": await with_history(site, arguments.finished),
    }
    result: Figures = {}
    relays = {
        name: Relay(
            RelayConfig(
                database=place.database, kafka=place.kafka, sweep_seconds=3_600.0,
                group=f"{place.destination.topic}.relay",
            )
        )
        for name, place in places.items()
    }  # fmt: skip
    for relay in relays.values():
        await relay.start()
    rounds: dict[str, Callable[[str], Awaitable[float]]] = {
        "idle": lambda name: idle_round(relays[name]),
        "1,000 claimed": lambda name: full_round(relays[name], places[name]),
    }
    for title, round_of in rounds.items():
        arms: dict[str, Any] = {
            name: (lambda name=name, call=round_of: call(name)) for name in places
        }
        figures = await interleave(arms, arguments.repeats)
        result[title] = tell(title, figures, "no history")
    for relay in relays.values():
        await relay.stop()
    for title, hands_over in (("handed over", True), ("woken", False)):
        found = await latencies(site, arguments.seconds, 1_000, hands_over=hands_over)
        result[f"latency {title}, ms"] = percentiles(found)
        print(f"latency {title}:", percentiles(found), flush=True)
    return result


if __name__ == "__main__":
    run("outbox_sweep", __doc__ or "", measure, finished=1_000_000, seconds=10)
