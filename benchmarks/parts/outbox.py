"""What the outbox costs: a full cycle of a message, and its sweep beside a long history.

The consumers, `batched` and `row_by_row`, are processes until they are killed.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import time
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct, structs

import outbox
from benchmarks.chains import Site, connected
from benchmarks.processes import End, call, say, serve
from benchmarks.spreads import compared, histogram_of, interleave, merged, spread
from chainctl.schema.parts import PARTS
from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.http_server import HttpLimits, HttpServer
from orderchain.clients.kafka import make_admin, make_consumer, make_producer, started
from orderchain.clients.kafka_config import KafkaConfig
from orderchain.clients.topics import create_topic
from orderchain.monitoring import calm_collector
from outbox import Destination, Message, Relay, RelayConfig, draw_message_ids, save_destinations
from outbox.callback.callback_service import CallbackIntake, CallbackService
from outbox.callback.calls import HttpSenderCalls, sender_app
from outbox.callback.checked_sender import CheckedSender
from outbox.callback.config import CallbackConfig, CheckedConfig
from outbox.consumer.config import ConsumerConfig
from outbox.consumer.consumer import Consumer
from outbox.records import common_headers, read_headers, record_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from benchmarks.load import Figures
    from orderchain.clients.postgres import Connection
    from outbox.consumer.delivery import Delivery


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
async def database_of(site: Site, name: str, *parts: str) -> AsyncIterator[DatabaseConfig]:
    """Make a database with parts of the outbox's schema, for as long as it is used.

    It is removed after that: what one arm has left must not cost the next one anything.
    """
    async with connected(site.admin) as admin:
        await admin.execute(f"CREATE DATABASE {name}")
        database = structs.replace(site.admin, dbname=name)
        async with connected(database) as connection:
            for part in parts:
                async with connection.transaction():
                    await connection.execute(PARTS[part].text())
    yield database
    async with connected(site.admin) as admin:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def make_topics(kafka: KafkaConfig, *topics: str) -> None:
    """Make topics of one partition."""
    async with started(make_admin(kafka, "benchmark")) as admin:
        for name in topics:
            await create_topic(admin, kafka, name, partitions=1)


@asynccontextmanager
async def outbox_of(site: Site) -> AsyncIterator[Outbox]:
    """Make a database with the tables of both sides, empty, and topics."""
    name = f"outbox_{secrets.token_hex(6)}"
    async with database_of(site, name, "outbox", "inbox") as database:
        # A consumer's name of its own: else its group would wait until the one before is given up.
        destination = Destination(name="bench", topic=name, consumers=(name,))
        async with connected(database) as connection:
            await save_destinations(connection, [destination])
        await make_topics(site.kafka, destination.topic, destination.confirm_topic)
        yield Outbox(database, site.kafka, destination)


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


async def store_all(business: Connection, count: int, to: Relay | CheckedSender | None) -> None:
    """Store messages, many per transaction; with `to`, hand them over to it."""
    for _ in range(0, count, _TRANSACTION_ROWS):
        await store(business, messages([PAYLOAD] * _TRANSACTION_ROWS), to)


async def store(
    business: Connection, rows: Sequence[Message], to: Relay | CheckedSender | None
) -> None:
    """Store messages in one transaction; with `to`, hand them over to it."""
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
    await until(lambda: to.stats().consumed, 1)


async def until(counted: Callable[[], int], count: int) -> None:
    """Wait until so many messages are counted."""
    async with asyncio.timeout(END_SECONDS):
        while counted() < count:  # noqa: ASYNC110 - a counter of the hot path
            await asyncio.sleep(_LOOK_SECONDS)


# -- outbox_cycle: what does a full cycle cost: store, send, broker's confirm, consumer's confirm? -


async def outbox_cycle(site: Site, *, repeats: int, messages: int, rows: int) -> Figures:
    """Measure each way in turn."""

    async def engine(**settings: Any) -> float:  # noqa: ANN401 - of `cycle`
        async with outbox_of(site) as place:
            return await cycle(place, messages, **settings)

    figures = await interleave(
        {
            "row by row": partial(_row_by_row, site, rows),
            "batched": engine,
            "woken": partial(engine, hands_over=False),
            "written": partial(engine, ack_linger_seconds=0.0),
        },
        repeats,
    )
    return {"cycle": compared(figures, ratio="row by row")}


async def cycle(
    place: Outbox,
    count: int,
    *,
    hands_over: bool = True,
    **settings: Any,  # noqa: ANN401 - of the relay
) -> float:
    """Return messages per second of the engine through the tables and topics of `place`."""
    async with (
        connected(place.database) as business,
        consuming(place, batched),
        Relay(place.relay_config(**settings)) as relay,
    ):
        rate = await rate_through(relay, business, count, hands_over=hands_over)
        if relay.stats().abnormal or relay.stats().unknown:
            raise RuntimeError(f"the run was not clean: {relay.stats()}")
    return rate


async def rate_through(
    sender: Relay | CheckedSender, business: Connection, count: int, *, hands_over: bool = True
) -> float:
    """Return messages per second, from the first one stored until the last one is consumed."""
    await first_message(sender, business)
    began = time.perf_counter()
    await store_all(business, count, sender if hands_over else None)
    await until(lambda: sender.stats().consumed, 1 + count)
    return count / (time.perf_counter() - began)


async def _row_by_row(site: Site, count: int) -> float:
    async with outbox_of(site) as place, AsyncExitStack() as stack:
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


# -- outbox_sweep: does the sweep cost more when the tables hold a long history? -------------------

_ROUNDS: Final = 200
_CLAIMED: Final = 1_000
_FINISH: Final = """
WITH gone AS (DELETE FROM outbox_pending RETURNING *)
INSERT INTO outbox_done (message_id, consumer, destination, status, send_count)
SELECT message_id, consumer, destination, 2, 1 FROM gone
"""


async def outbox_sweep(site: Site, *, repeats: int, finished: int) -> Figures:
    """Measure sweeps with and without history."""
    async with AsyncExitStack() as stack:
        relays: dict[str, tuple[Relay, Outbox]] = {}
        for name, rows in (("no history", 0), ("with history", finished)):
            place = await stack.enter_async_context(outbox_of(site))
            await _finish(place, rows)
            relay = Relay(place.relay_config(sweep_seconds=3_600.0))
            relays[name] = await stack.enter_async_context(relay), place
        idle = {name: partial(_idle_round, relay) for name, (relay, _) in relays.items()}
        full = {name: partial(_full_round, *both) for name, both in relays.items()}
        return {
            "idle": compared(await interleave(idle, repeats), ratio="no history"),
            "1,000 claimed": compared(await interleave(full, repeats), ratio="no history"),
        }


async def _finish(place: Outbox, finished: int) -> None:
    async with connected(place.database) as connection:
        for first in range(0, finished, 10_000):
            async with connection.transaction():
                rows = messages([PAYLOAD] * min(10_000, finished - first))
                await outbox.add_many(connection, rows)
                await connection.execute(_FINISH)
        await connection.execute("VACUUM ANALYZE")


async def _idle_round(relay: Relay) -> float:
    began = time.perf_counter()
    for _ in range(_ROUNDS):
        await relay.sweep(everything=False)
    return (time.perf_counter() - began) / _ROUNDS


async def _full_round(relay: Relay, place: Outbox) -> float:
    """Return the seconds of a sweep that claims many deliveries; their sends are not in it."""
    async with connected(place.database) as connection:
        async with connection.transaction():
            await outbox.add_many(connection, messages([PAYLOAD] * _CLAIMED))
            # Nobody is to be woken: the sweep is measured here.
            later = "UPDATE outbox_pending SET next_send_at = now() + interval '1 hour'"
            await connection.execute(later)
        await asyncio.sleep(0.2)
        await connection.execute("UPDATE outbox_pending SET next_send_at = now()")
        began = time.perf_counter()
        if await relay.sweep(everything=False) != _CLAIMED:
            raise RuntimeError("somebody else has claimed")
        seconds = time.perf_counter() - began
        await relay.settle()
        await connection.execute("DELETE FROM outbox_pending")
    return seconds


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


# -- outbox_latency: how late does a message come: from its commit to its handler? -----------------

_CONNECTIONS: Final = 16
"""Those of the business: one alone manages about 400 transactions per second, each flushed."""

_MAKE_LOG: Final = (
    "ALTER SYSTEM SET checkpoint_timeout = '1h'",
    "SELECT pg_reload_conf()",
    "CREATE TABLE filling (content text)",
    "INSERT INTO filling SELECT repeat('x', 1000) FROM generate_series(1, 250000)",
    "DROP TABLE filling",
)
"""Rows of a thousand bytes make log files to reuse."""

_WAYS: Final = {
    "handed over": (True, 1),
    "woken": (False, 1),
    "handed over, four a transaction": (True, 4),
    "woken, four a transaction": (False, 4),
}
"""Whether messages are handed over to the relay, and how many are in a transaction."""


class _Delays(NamedTuple):
    """The delays of one round, in nanoseconds."""

    from_commit: list[int]
    from_begin: list[int]
    rate: float
    """Messages per second that were really stored."""


async def outbox_latency(
    site: Site, *, repeats: int, seconds: int, rate: int, warm: int
) -> Figures:
    """Measure every way in turn."""
    found: dict[str, list[_Delays]] = {name: [] for name in _WAYS}
    async with connected(site.admin) as admin:
        for statement in _MAKE_LOG:
            await admin.execute(statement)
        for number in range(repeats + 1):
            for name, way in _WAYS.items():
                # The dirty pages of one arm are written, and its log files are free for the next.
                await admin.execute("CHECKPOINT")
                found[name].append(await _round(site, seconds if number else warm, rate, *way))
                print(f"{name}: {found[name][-1].rate:,.0f}/s stored", flush=True)
    return {
        name: {
            "commit to handler, ms": _percentiles([each.from_commit for each in rounds[1:]]),
            "begin to handler, ms": _percentiles([each.from_begin for each in rounds[1:]]),
            "stored a second": spread([each.rate for each in rounds[1:]]),
        }
        for name, rounds in found.items()
    }


async def _round(site: Site, seconds: int, rate: int, hands_over: bool, together: int) -> _Delays:
    """Return the delays of `seconds` seconds of load, `rate` messages in each."""
    count = seconds * rate // together * together
    firsts = iter(range(0, count, together))
    begun, committed, handled = ([0] * count for _ in range(3))
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(outbox_of(site))
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
    return _Delays(
        # The handler may run before the business hears of its commit: that counts as at once.
        [max(at - commit, 0) for at, commit in zip(handled, committed, strict=True)],
        [at - begin for at, begin in zip(handled, begun, strict=True)],
        reached,
    )


def _percentiles(rounds: list[list[int]]) -> Figures:
    histograms = [histogram_of(each) for each in rounds]
    each_p99 = spread([merged([one])["p99"] for one in histograms])
    return merged(histograms) | {"p99 of a round": each_p99}


# -- outbox_delayed_check: what does mode 5 cost beside mode 3: messages a second, rows written? ---

_TOKEN: Final = "of-the-benchmark"  # noqa: S105 - of a server that lives for seconds

_PAUSE_SECONDS: Final = 0.1
"""How long a confirm may wait for others in the callback service, and how often that looks."""

_OTHERS: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
_WRITTEN: Final = """
SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::float8 FROM pg_stat_user_tables WHERE relname = $1
"""


async def outbox_delayed_check(site: Site, *, repeats: int, messages: int) -> Figures:
    """Measure each way in turn."""
    written: dict[str, list[float]] = defaultdict(list)
    every, plain = "mode 3, every ack written", "mode 3"

    async def note(name: str, database: DatabaseConfig, table: str) -> None:
        written[name].append(await _rows_written(database, table) / messages)

    async def mode_3(name: str, **settings: Any) -> float:  # noqa: ANN401 - of the relay
        async with outbox_of(site) as place:
            rate = await cycle(place, messages, **settings)
            await note(name, place.database, "outbox_pending")
        return rate

    figures = await interleave(
        {
            every: partial(mode_3, every, ack_linger_seconds=0.0),
            plain: partial(mode_3, plain),
            "mode 5": partial(_mode_5, site, messages, note),
        },
        repeats,
    )
    without_warm_up = {name: spread(values[1:]) for name, values in written.items()}
    return {"rate": compared(figures, ratio=every), "rows written a message": without_warm_up}


async def _rows_written(database: DatabaseConfig, table: str) -> float:
    """Return the rows of `table` that were written.

    Sessions report what they have done when they end, so all of them must have ended.
    """
    async with connected(database) as connection:
        async with asyncio.timeout(END_SECONDS):
            while await connection.fetchval(_OTHERS) > 1:  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(0.05)
        return float(await connection.fetchval(_WRITTEN, table))


async def _mode_5(site: Site, count: int, note: Callable[..., Awaitable[None]]) -> float:
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(outbox_of(site))
        topic = place.destination.topic
        checks = f"{topic}.checks"
        await make_topics(place.kafka, checks)
        callback_store = await stack.enter_async_context(
            database_of(site, f"{topic}_callback", "callback")
        )
        check = CheckedConfig(sender="bench", check_topic=checks)
        sender = CheckedSender(place.relay_config(), check)
        callback = CallbackConfig(
            database=callback_store,
            kafka=place.kafka,
            check_topic=checks,
            confirm_topics=(place.destination.confirm_topic,),
            name=f"{topic}.callback",
            return_seconds=_PAUSE_SECONDS,
            round_seconds=_PAUSE_SECONDS,
        )
        async with (
            connected(place.database) as business,
            consuming(place, batched),
            sender,
            _served(sender) as url,
            call(serving, keeps_errors=False, config=callback, url=url) as service,
        ):
            await service.expect(b"ready")
            rate = await rate_through(sender, business, count)
            if sender.stats().resent or sender.stats().dropped or sender.stats().unknown:
                raise RuntimeError(f"the run was not clean: {sender.stats()}")
        await note("mode 5", place.database, "outbox_pending")
        await note("mode 5, its callback service", callback_store, "callback_delivery")
    return rate


@asynccontextmanager
async def _served(sender: CheckedSender) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = sender_app(sender, _TOKEN)
        server = HttpServer(app, HttpLimits(connections_max=100))
        serving = asyncio.create_task(server.serve(listening))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.stop()
        await serving


async def serving(config: CallbackConfig, url: str) -> None:
    """Be the callback service of mode 5: take records in, and return confirms."""
    calm_collector()
    sender: Any = SimpleNamespace(callback_url=url, call_token=_TOKEN)
    service = CallbackService(config, HttpSenderCalls(lambda _: sender, config.call_seconds))
    await service.check()
    say(b"ready")
    await asyncio.gather(CallbackIntake(config, service).run(), service.run())


if __name__ == "__main__":
    serve(batched, row_by_row, serving)
