"""The cost of a message's full cycle, and how late it comes to its handler.

A cycle: store, send, the broker's confirm, the consumer's confirm. The sending side runs in the
benchmark's own process. Consumers, `batched` and `row_by_row`, are processes until they are killed.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

import outbox
from benchmarks.chains import Site, connected
from benchmarks.load import Arm, Figures, Line, Scope
from benchmarks.processes import End, RunFailed, call, freeze, say, serve
from benchmarks.spreads import histogram_of
from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka import make_admin, make_consumer, make_producer, started
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.topics import create_topic
from chain_kernel.process import calm_collector
from chainctl.schema.parts import PARTS
from outbox import Destination, Message, Relay, RelayConfig, draw_message_ids, save_destinations
from outbox.consumer.config import ConsumerConfig
from outbox.consumer.consumer import Consumer
from outbox.records import common_headers, read_headers, record_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from chain_kernel.clients.postgres import Connection
    from outbox.consumer.delivery import Delivery


# -- arms ------------------------------------------------------------------------------------------

BASE: Final = "row by row"
_MESSAGES: Final = 100_000
_BASE_MESSAGES: Final = 1_500
_DELAYED_PER_SECOND: Final = 1_000
_DELAY_SECONDS: Final = 6
_REPEATS_MAX: Final = 2

_CYCLES: Final = {"batched": True, "woken": False}
"""Ways of a message to the relay: True if it is handed over, False if the relay hears of it."""

_DELAYS: Final = {
    "handed over, delay": (True, 1),
    "woken, delay": (False, 1),
    "handed over, four a transaction, delay": (True, 4),
    "woken, four a transaction, delay": (False, 4),
}
"""The way of messages to the relay, and how many are in a transaction."""


def arms(_: Scope) -> list[Arm]:
    """Return full cycles, the common way first, then delays under a steady load."""
    counts = {BASE: _BASE_MESSAGES, **dict.fromkeys(_CYCLES, _MESSAGES)}
    delayed = {"seconds": _DELAY_SECONDS, "rate": _DELAYED_PER_SECOND}
    settings = {name: {"messages": count} for name, count in counts.items()}
    settings |= dict.fromkeys(_DELAYS, delayed)
    return [
        Arm(name=name, settings={**given}, repeats_max=_REPEATS_MAX)
        for name, given in settings.items()
    ]


async def run(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Run one repeat through tables and topics of its own. Raises RunFailed, TimeoutError."""
    freeze()
    async with outbox_of(site) as place:
        if arm.name in _DELAYS:
            seconds, rate = (int(arm.settings[name]) for name in ("seconds", "rate"))
            return await delays(site, place, seconds, rate, *_DELAYS[arm.name])
        count = int(arm.settings["messages"])
        if arm.name == BASE:
            return {"messages_per_second": await _row_by_row(place, count)}
        reached = await _cycle(place, count, hands_over=_CYCLES[arm.name])
        return {"messages_per_second": reached}


# -- tables and topics of a run --------------------------------------------------------------------

PAYLOAD: Final = bytes(100)
_TRANSACTION_ROWS: Final = 500
_LOOK_SECONDS: Final = 0.002

END_SECONDS: Final = 120.0
"""A run whose last message has not come by then is broken."""


class Outbox(Struct, frozen=True):
    """One database for sender and consumer, and one destination."""

    database: DatabaseConfig
    kafka: KafkaConfig
    destination: Destination

    def relay_config(self, **settings: Any) -> RelayConfig:  # noqa: ANN401
        """Return the settings of a relay of its own."""
        name = f"{self.destination.topic}.relay"
        return RelayConfig(database=self.database, kafka=self.kafka, name=name, **settings)


@asynccontextmanager
async def outbox_of(site: Site) -> AsyncIterator[Outbox]:
    """Make a database with the tables of both sides, empty, and topics, for as long as it is used.

    It is removed after that: what one arm has left must not cost the next one anything.
    """
    name = f"outbox_{secrets.token_hex(6)}"
    # A consumer's name of its own: else its group would wait until the one before is given up.
    destination = Destination(name="bench", topic=name, consumers=(name,))
    database = structs.replace(site.admin, dbname=name)
    async with connected(site.admin) as admin:
        await admin.execute(f"CREATE DATABASE {name}")
    async with connected(database) as connection:
        for part in ("outbox", "inbox"):
            async with connection.transaction():
                await connection.execute(PARTS[part].text())
        await save_destinations(connection, [destination])
    async with started(make_admin(site.kafka, "benchmark")) as admin:
        for topic in (destination.topic, destination.confirm_topic):
            await create_topic(admin, site.kafka, topic, partitions=1)
    yield Outbox(database, site.kafka, destination)
    async with connected(site.admin) as admin:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def consuming(
    place: Outbox,
    way: Callable[..., Awaitable[None]],
    **given: Any,  # noqa: ANN401 - of `way`
) -> AsyncIterator[End]:
    """Run a consumer in a process of its own for the block, before which it has joined."""
    async with call(way, place=place, keeps_errors=False, **given) as consumer:
        await consumer.expect(b"ready")
        yield consumer


def messages(payloads: Iterable[bytes]) -> list[Message]:
    """Return messages with these payloads."""
    kept = list(payloads)
    ids = draw_message_ids(len(kept))
    return [Message(each, "bench", payload) for each, payload in zip(ids, kept, strict=True)]


async def store(business: Connection, rows: Sequence[Message], to: Relay | None) -> None:
    """Store messages in one transaction; with `to`, hand them over to it."""
    if to is None:
        async with business.transaction():
            await outbox.add_many(business, rows)
        await outbox.wake(business)
    else:
        async with to.transaction(business) as transaction:
            await transaction.add_many(rows)


async def first_message(to: Relay, business: Connection) -> None:
    """Return once a message has come full circle: then everybody has joined and is warm."""
    async with to.transaction(business) as transaction:
        await transaction.add("bench", PAYLOAD)
    await until(lambda: to.stats().consumed, 1)


async def until(counted: Callable[[], int], count: int) -> None:
    """Wait until so many messages are counted."""
    async with asyncio.timeout(END_SECONDS):
        while counted() < count:  # noqa: ASYNC110 - a counter of the hot path
            await asyncio.sleep(_LOOK_SECONDS)


# -- full cycles: messages per second, from the first stored until the last is consumed ------------


async def _cycle(place: Outbox, count: int, *, hands_over: bool) -> float:
    """Return messages per second of the engine through the tables and topics of `place`."""
    async with (
        connected(place.database) as business,
        consuming(place, batched),
        Relay(place.relay_config()) as relay,
    ):
        await first_message(relay, business)
        began = time.perf_counter()
        for _ in range(0, count, _TRANSACTION_ROWS):
            rows = messages([PAYLOAD] * _TRANSACTION_ROWS)
            await store(business, rows, relay if hands_over else None)
        await until(lambda: relay.stats().consumed, 1 + count)
        seconds = time.perf_counter() - began
        if relay.stats().abnormal or relay.stats().unknown:
            raise RunFailed(f"the run was not clean: {relay.stats()}")
    return count / seconds


async def _row_by_row(place: Outbox, count: int) -> float:
    async with AsyncExitStack() as stack:
        business, relay, intake = [
            await stack.enter_async_context(connected(place.database)) for _ in range(3)
        ]
        await business.execute(
            "CREATE TABLE message (message_id uuid PRIMARY KEY, payload bytea, status smallint)"
        )
        headers = common_headers(place.destination, None)
        producer = make_producer(place.kafka, "benchmark")
        confirms = make_consumer(
            place.kafka, "benchmark", place.destination.confirm_topic, auto_offset_reset="earliest"
        )
        stored: asyncio.Queue[Any] = asyncio.Queue()
        taken: list[int] = []

        async def store(more: int) -> None:
            insert = "INSERT INTO message VALUES ($1, $2, 0)"
            for message_id in draw_message_ids(more):
                async with business.transaction():
                    await business.execute(insert, message_id, PAYLOAD)
                stored.put_nowait(message_id)

        async def send() -> None:
            update = "UPDATE message SET status = 1 WHERE message_id = $1 AND status = 0"
            while True:
                message_id = await stored.get()
                its = record_headers(message_id, None, headers)
                await producer.send_and_wait(place.destination.topic, PAYLOAD, headers=its)
                await relay.execute(update, message_id)

        async def take() -> None:
            update = "UPDATE message SET status = 2 WHERE message_id = $1 AND status IN (0, 1)"
            while True:
                record = await anext(confirms)
                await intake.execute(update, record.value.hex())
                taken.append(record.offset)

        for client in (producer, confirms):
            await stack.enter_async_context(started(client))
        async with consuming(place, row_by_row), asyncio.timeout(END_SECONDS):
            working = [asyncio.create_task(send()), asyncio.create_task(take())]
            await store(1)
            await until(lambda: len(taken), 1)
            began = time.perf_counter()
            await store(count)
            await until(lambda: len(taken), 1 + count)
            seconds = time.perf_counter() - began
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
    return count / seconds


# -- delays: from a commit to the handler, under an open load --------------------------------------

_CONNECTIONS: Final = 16
"""Those of the business: one alone manages about 400 transactions per second, each flushed."""


async def delays(
    site: Site, place: Outbox, seconds: int, rate: int, hands_over: bool, together: int
) -> Figures:
    """Return the delays of `seconds` seconds of load, `rate` messages in each, from the commit.

    `begin_histogram` has those from the begin of the transaction.
    """
    count = seconds * rate // together * together
    firsts = iter(range(0, count, together))
    begun, committed, handled = ([0] * count for _ in range(3))
    async with AsyncExitStack() as stack:
        # Dirty pages are written before, and no checkpoint by time falls into the round.
        await (await stack.enter_async_context(connected(site.admin))).execute("CHECKPOINT")
        business = [
            await stack.enter_async_context(connected(place.database)) for _ in range(_CONNECTIONS)
        ]
        consumer = await stack.enter_async_context(consuming(place, batched, is_timed=True))
        relay = await stack.enter_async_context(Relay(place.relay_config()))

        async def collect() -> None:
            for _ in range(count):
                number, at = (await consumer.line()).split()
                handled[int(number)] = int(at)

        async def work(connection: Connection) -> None:
            for first in firsts:
                await asyncio.sleep(max(began + first / rate - time.monotonic(), 0))
                numbers = slice(first, first + together)
                begun[numbers] = [time.monotonic_ns()] * together
                numbered = (n.to_bytes(8, "big") + PAYLOAD for n in range(first, first + together))
                await store(connection, messages(numbered), relay if hands_over else None)
                committed[numbers] = [time.monotonic_ns()] * together

        await first_message(relay, business[0])
        await consumer.line()  # its time means nothing
        collecting = asyncio.create_task(collect())
        began = time.monotonic()
        await asyncio.gather(*(work(connection) for connection in business))
        reached = count / (time.monotonic() - began)
        async with asyncio.timeout(END_SECONDS):
            await collecting
    return {
        # The handler may run before the business hears of its commit: that counts as at once.
        "histogram": histogram_of(
            [max(at - commit, 0) for at, commit in zip(handled, committed, strict=True)]
        ),
        "begin_histogram": histogram_of(
            [at - begin for at, begin in zip(handled, begun, strict=True)]
        ),
        "stored_per_second": reached,
    }


# -- the consumers ---------------------------------------------------------------------------------


async def batched(place: Outbox, is_timed: bool = False) -> None:
    """Consume as the engine does: many messages per transaction, many confirms per record.

    Its only effect is the inbox, as of `row_by_row`. If it `is_timed`, it writes a line for each
    message that has reached the handler: its number, with which its payload begins, and when, by
    the monotonic clock of the machine.
    """

    async def handle(deliveries: Sequence[Delivery], connection: object) -> None:
        if is_timed:
            now = time.monotonic_ns()
            for delivery in deliveries:
                number = int.from_bytes(delivery.payload[:8], "big")
                sys.stdout.write(f"{number} {now}\n")
            sys.stdout.flush()

    calm_collector()
    config = ConsumerConfig(
        name=place.destination.topic,
        topics=(place.destination.topic,),
        kafka=place.kafka,
        database=place.database,
        batch_max=2_000,
    )
    async with Consumer(config) as consumer:
        say(b"ready")
        await consumer.run_many(handle)


async def row_by_row(place: Outbox) -> None:
    """Consume in the common way: one transaction and one awaited confirm per message."""
    calm_collector()
    topic = place.destination.topic
    consumer = make_consumer(
        place.kafka, "benchmark", topic, group_id=topic, auto_offset_reset="earliest"
    )
    async with (
        started(make_producer(place.kafka, "benchmark")) as producer,
        started(consumer),
        connected(place.database) as connection,
    ):
        await connection.execute("CREATE TABLE IF NOT EXISTS seen (message_id uuid PRIMARY KEY)")
        insert = "INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING"
        say(b"ready")
        async for record in consumer:
            message_id = read_headers(record.headers).message_id
            async with connection.transaction():
                await connection.execute(insert, message_id)
            await producer.send_and_wait(place.destination.confirm_topic, message_id.bytes)


if __name__ == "__main__":
    serve(batched, row_by_row)
