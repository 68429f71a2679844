"""Does the sweep cost more when the tables hold a long history?

A round that finds nothing, and one that claims 1,000 deliveries, with no finished row and with 10^6
of them.

    python -m benchmarks.outbox_sweep [--repeats 5 --finished 1000000]
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import outbox
from benchmarks.arms import interleave
from benchmarks.chains import connect_to
from benchmarks.committing import Figures, run, tell
from benchmarks.outbox_site import PAYLOAD, OutboxSite, make_outbox
from outbox import Message, Relay, RelayConfig, draw_message_ids

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from benchmarks.chains import Site

ROUNDS = 200
CLAIMED = 1_000


async def with_history(site: Site, finished: int) -> OutboxSite:
    """Make an outbox with `finished` finished messages."""
    place = await make_outbox(site)
    connection = await connect_to(place.database)
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
    connection = await connect_to(place.database)
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


async def measure(site: Site, arguments: argparse.Namespace) -> Figures:
    """Measure sweeps with and without history."""
    places = {
        "no history": await with_history(site, 0),
        "with history": await with_history(site, arguments.finished),
    }
    result: Figures = {}
    relays = {
        name: Relay(
            RelayConfig(
                database=place.database, kafka=place.kafka, sweep_seconds=3_600.0,
                name=f"{place.destination.topic}.relay",
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
    return result


if __name__ == "__main__":
    run("outbox_sweep", __doc__ or "", measure, finished=1_000_000)
