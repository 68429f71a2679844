"""What does a full cycle of the outbox cost: store, send, broker's confirm, consumer's confirm?

- row by row: the common way. A transaction for each message, an awaited send, an update when the
  broker has it, a transaction and an awaited confirm at the consumer, an update when that came;
- batched: the engine, messages stored 500 to a transaction and handed over in memory;
- woken: the same, stored by somebody else: the relay hears of it, claims and reads it;
- written: as batched, but every acknowledgement is written, also where the confirm overtakes it.

The consumer is a process of its own in each. Messages a second, from the first one stored until the
last one is consumed.

    python -m benchmarks.outbox_cycle [--repeats 3 --messages 100000 --rows 1500]
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import outbox
from benchmarks.arms import interleave
from benchmarks.chains import connect_to
from benchmarks.children import start_worker
from benchmarks.committing import Figures, run, tell
from benchmarks.outbox_site import PAYLOAD, OutboxSite, drop_outbox, make_outbox
from orderchain.clients.kafka import make_consumer, make_producer
from outbox import Message, Relay, RelayConfig, draw_message_ids
from outbox.headers import common_headers, record_headers

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from benchmarks.chains import Site
    from orderchain.clients.postgres import Connection
    from outbox.callback.checked_sender import CheckedSender

TRANSACTION_ROWS = 500

END_SECONDS = 120.0
"""A run whose last message has not come by then is broken."""


@asynccontextmanager
async def consumer_process(
    place: OutboxSite, way: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a consumer; returns once it has joined."""
    process = await start_worker("benchmarks.outbox_consumers", place, way)
    lines = process.stdout
    try:
        if lines is None or await lines.readline() != b"ready\n":
            raise RuntimeError("the consumer did not start")
        yield lines
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def engine(
    site: Site,
    messages: int,
    *,
    hands_over: bool = True,
    **settings: Any,  # noqa: ANN401
) -> float:
    """Return messages per second of the engine."""
    place = await make_outbox(site)
    rate = await cycle(place, messages, hands_over=hands_over, **settings)
    await drop_outbox(site, place)
    return rate


async def cycle(
    place: OutboxSite,
    messages: int,
    *,
    hands_over: bool = True,
    **settings: Any,  # noqa: ANN401
) -> float:
    """Return messages per second through the tables and topics of `place`."""
    business = await connect_to(place.database)
    config = RelayConfig(
        database=place.database,
        kafka=place.kafka,
        name=f"{place.destination.topic}.relay",
        **settings,
    )
    async with consumer_process(place, "batched"), Relay(config) as relay:
        await first_message(relay, business)
        began = time.perf_counter()
        await store_all(business, messages, relay if hands_over else None)
        async with asyncio.timeout(END_SECONDS):
            while relay.stats().consumed <= messages:  # noqa: ASYNC110 - a counter of the hot path
                await asyncio.sleep(0.002)
        seconds = time.perf_counter() - began
        if relay.stats().abnormal or relay.stats().unknown:
            raise RuntimeError(f"the run was not clean: {relay.stats()}")
    await business.close()
    return messages / seconds


async def store_all(business: Connection, messages: int, to: Relay | CheckedSender | None) -> None:
    """Store messages, `TRANSACTION_ROWS` per transaction; with `to`, hand them over to it."""
    for _ in range(0, messages, TRANSACTION_ROWS):
        rows = [Message(each, "bench", PAYLOAD) for each in draw_message_ids(TRANSACTION_ROWS)]
        if to is None:
            async with business.transaction():
                await outbox.add_many(business, rows)
        else:
            async with to.transaction(business) as transaction:
                await transaction.add_many(rows)


async def first_message(to: Relay | CheckedSender, business: Connection) -> None:
    """Return once a message has come full circle: then everybody has joined and is warm."""
    async with to.transaction(business) as transaction:
        await transaction.add("bench", PAYLOAD)
    async with asyncio.timeout(END_SECONDS):
        while not to.stats().consumed:  # noqa: ASYNC110 - a counter of the hot path
            await asyncio.sleep(0.002)


async def row_by_row(site: Site, messages: int) -> float:
    """Return messages per second of the common way."""
    place = await make_outbox(site)
    topic = place.destination.topic
    business, relay, intake = [await connect_to(place.database) for _ in range(3)]
    await business.execute(
        "CREATE TABLE message (message_id uuid PRIMARY KEY, payload bytea, status smallint)"
    )
    headers = common_headers(place.destination, None)
    producer = make_producer(place.kafka, "benchmark")
    confirms = make_consumer(
        place.kafka, "benchmark", place.destination.confirm_topic, auto_offset_reset="earliest",
    )  # fmt: skip
    stored: asyncio.Queue[Any] = asyncio.Queue()
    taken: list[int] = []

    async def store(count: int) -> None:
        for message_id in draw_message_ids(count):
            async with business.transaction():
                await business.execute(
                    "INSERT INTO message VALUES ($1, $2, 0)", message_id, PAYLOAD
                )
            stored.put_nowait(message_id)

    async def until_taken(count: int) -> None:
        while len(taken) < count:  # noqa: ASYNC110 - a counter of the hot path
            await asyncio.sleep(0.002)

    async def send() -> None:
        while True:
            message_id = await stored.get()
            await producer.send_and_wait(
                topic, PAYLOAD, headers=record_headers(message_id, None, headers)
            )
            await relay.execute(
                "UPDATE message SET status = 1 WHERE message_id = $1 AND status = 0", message_id
            )

    async def take() -> None:
        while True:
            record = await anext(confirms)
            await intake.execute(
                "UPDATE message SET status = 2 WHERE message_id = $1 AND status IN (0, 1)",
                record.value.hex(),
            )
            taken.append(record.offset)

    await producer.start()
    await confirms.start()
    async with consumer_process(place, "row_by_row"), asyncio.timeout(END_SECONDS):
        working = [asyncio.create_task(send()), asyncio.create_task(take())]
        await store(1)
        await until_taken(1)
        began = time.perf_counter()
        await store(messages)
        await until_taken(1 + messages)
        seconds = time.perf_counter() - began
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    await producer.stop()
    await confirms.stop()
    for connection in (business, relay, intake):
        await connection.close()
    await drop_outbox(site, place)
    return messages / seconds


async def measure(site: Site, arguments: argparse.Namespace) -> Figures:
    """Measure each way in turn."""
    count = arguments.messages
    figures = await interleave(
        {
            "row by row": lambda: row_by_row(site, arguments.rows),
            "batched": lambda: engine(site, count),
            "woken": lambda: engine(site, count, hands_over=False),
            "written": lambda: engine(site, count, ack_linger_seconds=0.0),
        },
        arguments.repeats,
    )
    return {"cycle": tell("cycle", figures, "row by row")}


if __name__ == "__main__":
    run("outbox_cycle", __doc__ or "", measure, repeats=3, messages=100_000, rows=1_500)
