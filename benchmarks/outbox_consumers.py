"""The consumers of the outbox's benchmarks, each in a process of its own until it is killed.

    python -m benchmarks.outbox_consumers batched|row_by_row|timed, the job on stdin

`timed` writes a line for each message: the number that its payload begins with, and when its
handler had it, by the monotonic clock of the machine, in nanoseconds.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import uvloop

from benchmarks.chains import connect_to
from benchmarks.children import job_of
from benchmarks.outbox_site import OutboxSite
from orderchain.clients.kafka import make_consumer, make_producer
from orderchain.collector import calm_collector
from outbox.consumer.config import ConsumerConfig
from outbox.consumer.consumer import Consumer
from outbox.headers import read_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox.consumer.delivery import Delivery


def config_of(place: OutboxSite, **settings: Any) -> ConsumerConfig:  # noqa: ANN401
    """Return the settings of our consumer."""
    return ConsumerConfig(
        name=place.destination.topic,
        topics=(place.destination.topic,),
        kafka=place.kafka,
        database=place.database,
        **settings,
    )


async def batched(place: OutboxSite) -> None:
    """Consume as the engine does: many messages per transaction, many confirms per record."""

    async def handle(deliveries: Sequence[Delivery], connection: object) -> None:
        pass  # its only effect is the inbox: the same in both ways

    async with Consumer(config_of(place, batch_max=2_000)) as consumer:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await consumer.run_many(handle)


async def timed(place: OutboxSite) -> None:
    """Write when each message has reached the handler."""

    async def handle(deliveries: Sequence[Delivery], connection: object) -> None:
        now = time.monotonic_ns()
        for delivery in deliveries:
            number = int.from_bytes(delivery.payload[:8], "big")
            sys.stdout.write(f"{number} {now}\n")
        sys.stdout.flush()

    async with Consumer(config_of(place, batch_max=2_000)) as consumer:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await consumer.run_many(handle)


async def row_by_row(place: OutboxSite) -> None:
    """Consume in the common way: one transaction and one awaited confirm per message."""
    connection = await connect_to(place.database)
    await connection.execute("CREATE TABLE IF NOT EXISTS seen (message_id uuid PRIMARY KEY)")
    producer = make_producer(place.kafka, "benchmark")
    consumer = make_consumer(
        place.kafka,
        "benchmark",
        place.destination.topic,
        group_id=place.destination.topic,
        auto_offset_reset="earliest",
    )
    await producer.start()
    await consumer.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async for record in consumer:
        message_id = read_headers(record.headers).message_id
        async with connection.transaction():
            insert = "INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING"
            await connection.execute(insert, message_id)
        await producer.send_and_wait(place.destination.confirm_topic, message_id.bytes)


if __name__ == "__main__":
    ways = {"batched": batched, "timed": timed, "row_by_row": row_by_row}
    calm_collector()
    uvloop.run(ways[sys.argv[1]](job_of(OutboxSite)))
