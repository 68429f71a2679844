"""How late does a message come: from the commit of its business transaction to its handler?

An open load: transactions fall due on a constant schedule, and are run over some connections of one
business process, with one message each or with four. The relay is in that process, the consumer in
another one. What was really stored a second is told beside the delays.

- handed over: the transaction is the relay's, which sends what was stored without reading it back;
- woken: somebody else's, who stores by `outbox.add`: the relay hears of it, claims and reads it.

A round of each way comes first and is not counted. It is longer than the others: a broker that was
just started has not compiled its own code yet, and takes twice the time and the CPU for a while. A
new PostgreSQL makes its log files as it goes, and everybody's commit waits for each; so a few are
written before, and used again from then on, as in a server that has run for an hour. Checkpoints
come between the rounds, none within one, so what they cost is not in the figures.

Percentiles are those of the merged histograms of all rounds; beside them each round's own p99.

    python -m benchmarks.outbox_latency [--repeats 3 --seconds 6 --rate 1000 --warm 10]
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

import outbox
from benchmarks.arms import spread
from benchmarks.chains import connect_to
from benchmarks.committing import Figures, run
from benchmarks.outbox_cycle import consumer_process, first_message
from benchmarks.outbox_site import PAYLOAD, drop_outbox, make_outbox
from benchmarks.percentiles import histogram_of, merged
from outbox import Message, Relay, RelayConfig, draw_message_ids

if TYPE_CHECKING:
    import argparse

    from benchmarks.chains import Site
    from orderchain.clients.postgres import Connection

CONNECTIONS = 16
"""Those of the business: one alone manages about 400 transactions per second, each flushed."""

LOG_ROWS = 250_000
"""Rows of a thousand bytes: they make log files to reuse."""

END_SECONDS = 60.0


class Delays(NamedTuple):
    """The delays of one round, in nanoseconds."""

    from_commit: list[int]
    from_begin: list[int]
    rate: float
    """Messages per second that were really stored."""


class Way(NamedTuple):
    """How messages are stored."""

    hands_over: bool
    together: int
    """Messages per transaction."""


WAYS = {
    "handed over": Way(hands_over=True, together=1),
    "woken": Way(hands_over=False, together=1),
    "handed over, four a transaction": Way(hands_over=True, together=4),
    "woken, four a transaction": Way(hands_over=False, together=4),
}


async def one_round(site: Site, seconds: int, rate: int, way: Way) -> Delays:
    """Return the delays of `seconds` seconds of load, `rate` messages in each."""
    place = await make_outbox(site)
    topic = place.destination.topic
    config = RelayConfig(database=place.database, kafka=place.kafka, name=f"{topic}.relay")
    business = [await connect_to(place.database) for _ in range(CONNECTIONS)]
    count = seconds * rate // way.together * way.together
    firsts = iter(range(0, count, way.together))
    begun, committed, handled = ([0] * count for _ in range(3))
    async with consumer_process(place, "timed") as lines, Relay(config) as relay:

        async def collect() -> None:
            for _ in range(count):
                number, at = (await lines.readline()).split()
                handled[int(number)] = int(at)

        async def store(connection: Connection, rows: list[Message]) -> None:
            if way.hands_over:
                async with relay.transaction(connection) as transaction:
                    await transaction.add_many(rows)
            else:
                async with connection.transaction():
                    await outbox.add_many(connection, rows)

        async def work(connection: Connection) -> None:
            for first in firsts:
                await asyncio.sleep(max(began + first / rate - time.monotonic(), 0))
                numbers = slice(first, first + way.together)
                begun[numbers] = [time.monotonic_ns()] * way.together
                await store(connection, messages(first, way.together))
                committed[numbers] = [time.monotonic_ns()] * way.together

        await first_message(relay, business[0])
        await lines.readline()  # its time means nothing
        collecting = asyncio.create_task(collect())
        began = time.monotonic()
        await asyncio.gather(*(work(connection) for connection in business))
        reached = count / (time.monotonic() - began)
        async with asyncio.timeout(END_SECONDS):
            await collecting
    for connection in business:
        await connection.close()
    await drop_outbox(site, place)
    return Delays(
        # The handler may run before the business hears of its commit: that counts as at once.
        [max(at - commit, 0) for at, commit in zip(handled, committed, strict=True)],
        [at - begin for at, begin in zip(handled, begun, strict=True)],
        reached,
    )


def messages(first: int, count: int) -> list[Message]:
    """Return messages whose payloads begin with their numbers."""
    return [
        Message(message_id, "bench", number.to_bytes(8, "big") + PAYLOAD)
        for number, message_id in enumerate(draw_message_ids(count), start=first)
    ]


async def make_log_files(site: Site) -> None:
    """Make the server write log files, and keep them for reuse."""
    connection = await connect_to(site.admin)
    await connection.execute("ALTER SYSTEM SET checkpoint_timeout = '1h'")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.execute("CREATE TABLE filling (content text)")
    insert = "INSERT INTO filling SELECT repeat('x', 1000) FROM generate_series(1, $1::integer)"
    await connection.execute(insert, LOG_ROWS)
    await connection.execute("DROP TABLE filling")
    await connection.close()


async def checkpoint(site: Site) -> None:
    """Write the dirty pages that one arm has left, and free its log files for the next."""
    connection = await connect_to(site.admin)
    await connection.execute("CHECKPOINT")
    await connection.close()


async def measure(site: Site, arguments: argparse.Namespace) -> Figures:
    """Measure every way in turn."""
    found: dict[str, list[Delays]] = {name: [] for name in WAYS}
    await make_log_files(site)
    for number in range(arguments.repeats + 1):
        for name, way in WAYS.items():
            await checkpoint(site)
            seconds = arguments.seconds if number else arguments.warm
            delays = await one_round(site, seconds, arguments.rate, way)
            if number:
                found[name].append(delays)
    return {name: _tell(name, rounds) for name, rounds in found.items()}


def _tell(name: str, rounds: list[Delays]) -> Figures:
    told = {
        "commit to handler, ms": _percentiles([each.from_commit for each in rounds]),
        "begin to handler, ms": _percentiles([each.from_begin for each in rounds]),
        "stored a second": spread([each.rate for each in rounds]),
    }
    found, stored = told["commit to handler, ms"], told["stored a second"]
    print(
        f"{name:32} {stored['median']:6,.0f}/s commit to handler p50 {found['p50']:5.1f} "
        f"p99 {found['p99']:5.1f} (rounds {found['p99 of a round']['min']:.1f} to "
        f"{found['p99 of a round']['max']:.1f}) p99.9 {found['p99.9']:5.1f} ms",
        flush=True,
    )
    return told


def _percentiles(rounds: list[list[int]]) -> Figures:
    histograms = [histogram_of(each) for each in rounds]
    each_p99 = spread([merged([one])["p99"] for one in histograms])
    return merged(histograms) | {"p99 of a round": each_p99}


if __name__ == "__main__":
    run("outbox_latency", __doc__ or "", measure, repeats=3, seconds=6, rate=1_000, warm=10)
