"""The port of every rival, and what rivals share: records, topics, counted rows."""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import msgspec

from benchmarks.chains import Site, connected, make_topic, remove_topic
from benchmarks.load import Venue
from chain_kernel.clients.kafka import TopicPartition, make_consumer, make_producer
from chain_kernel.model import Event
from chain_kernel.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from benchmarks.load import Load
    from chain_kernel.clients.database_config import DatabaseConfig
    from sequencer import Order

SQL: Final = load_sql("benchmarks.rivals", "queries.sql")

_CLASSES: Final = {
    "bare_pages": ("bare", "BarePages"),
    "bare_pipe": ("bare", "BarePipe"),
    "common_way": ("bare", "CommonWay"),
    "engine": ("engine", "Engine"),
    "engine_no_broker": ("engine", "EngineNoBroker"),
    "event_sourcing": ("libraries", "EventSourcing"),
    "kafka_transactions_events": ("libraries", "KafkaTransactionsEvents"),
    "kafka_transactions_frames": ("libraries", "KafkaTransactionsFrames"),
}
NAMES: Final = tuple(_CLASSES)


def rival_of(name: str) -> Rival:
    """Return the rival `name`."""
    module, kind = _CLASSES[name]
    made: Rival = getattr(import_module(f"benchmarks.rivals.{module}"), kind)()
    return made


class NotWhole(Exception):
    """A run that lost, repeated or swapped orders: it has no figure."""


@asynccontextmanager
async def prepared(site: Site, load: Load) -> AsyncIterator[Venue]:
    """Make the place of a run, for its time at most, and clean up after it."""
    rival = rival_of(load.rival)
    venue = Venue(site=site, load=load, place=await rival.prepare(site, load))
    try:
        async with asyncio.timeout(venue.deadline_seconds):
            yield venue
    finally:
        await rival.clean_up(venue)


async def require_stored(venue: Venue) -> None:
    """Raise NotWhole unless all orders of a run are stored."""
    stored = await rival_of(venue.load.rival).stored(venue)
    if stored != venue.load.all_orders:
        raise NotWhole(f"{stored} orders are stored of {venue.load.all_orders}")


class Rival:
    """One way to get orders from one process to another: durably, in order, with none missing.

    Its methods run in the benchmark's own process, each end in a process of its own.
    """

    title: ClassVar[str]
    """For tables and figures."""
    producer: ClassVar[type[Producer]]
    receiver: ClassVar[type[Receiver]]
    topic: ClassVar[str] = ""
    """The kind of topic that a run has."""
    rows: ClassVar[str] = ""
    """The statement that counts what is stored, of a chain if there is one."""
    tables: ClassVar[tuple[str, ...]] = ()
    """The statement that drops tables of its own, then those that make them."""

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make the tables, the topic, the chain, and return their names."""
        if self.tables:
            await execute(site.admin, *self.tables)
        if not self.topic:
            return {}
        topic = f"rival.{self.topic}.{secrets.token_hex(6)}"  # no run had it before
        await make_topic(site, topic)
        return {"topic": topic}

    async def stored(self, venue: Venue) -> int:
        """Return how many orders are stored durably. Raises NotWhole when a link is broken."""
        chain = [venue.chain_id] if "chain_id" in venue.place else []
        return await stored_rows(venue.site.admin, self.rows, *chain)

    async def clean_up(self, venue: Venue) -> None:
        """Remove what the run left, so that the next one finds the same disk."""
        if self.tables:
            await execute(venue.site.admin, self.tables[0])
        if self.topic:
            await remove_topic(venue.site, venue.topic)


class Openable(AsyncExitStack, ABC):
    """Something to be entered: it closes what `open` has entered."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    @abstractmethod
    async def open(self) -> None:
        """Connect."""


class Producer(Openable):
    """The sending end."""

    def __init__(self, venue: Venue) -> None:
        super().__init__()
        self.venue = venue
        self.last_id = 0

    def ready(self, batches: Sequence[list[Order]]) -> Sequence[Any]:
        """Return the batches as `send` takes them. It is not timed: only the bare pipes encode."""
        return batches

    @abstractmethod
    async def send(self, batches: Sequence[Any]) -> None:
        """Send, and return when all orders are durable."""

    async def settle(self) -> None:
        """Return when the broker has acknowledged all of them; `send` may wait for that itself."""

    def numbered(self, orders: Sequence[Order]) -> list[Event]:
        """Return `orders` as linked events, with ids and pids in the order of the calls."""
        first = self.last_id + 1
        self.last_id += len(orders)
        return linked(orders, first)


class Receiver(Openable):
    """The receiving end; once entered, it misses no order that is sent."""

    def __init__(self, venue: Venue, counter: RowCounter) -> None:
        super().__init__()
        self.venue = venue
        self.counter = counter

    @abstractmethod
    async def receive(self, until_rows: int) -> None:
        """Hand orders to the counter until it counts `until_rows`."""


def linked(orders: Sequence[Order], first_id: int = 1) -> list[Event]:
    """Return `orders` as events that follow each other."""
    return [
        Event(id_, id_ - 1, order.key, order.event_time_ns or 0, order.payload)
        for id_, order in enumerate(orders, first_id)
    ]


class RowCounter:
    """Counts what was handed on, as the service that a receiver feeds would take it."""

    def __init__(self) -> None:
        self.rows = 0
        self.last_id = 0
        self.notes: dict[str, float] = {}

    def take(self, events: Sequence[Event]) -> None:
        """Take rows that were handed on together. Raises NotWhole where they do not follow."""
        if events[0].pid != self.last_id:
            raise NotWhole(f"order {events[0].id} follows {self.last_id}")
        self.rows += len(events)
        self.last_id = events[-1].id


async def stored_rows(database: DatabaseConfig, query: str, *values: object) -> int:
    """Count what a query of `queries.sql` finds stored. Raises NotWhole where a link is broken."""
    async with connected(database) as connection:
        row = await connection.fetchrow(SQL[query], *values)
    if row["broken"]:
        raise NotWhole(f"{row['broken']} stored orders do not follow the one before")
    return int(row["rows"])


async def execute(database: DatabaseConfig, *queries: str) -> None:
    """Execute statements of `queries.sql` on a connection of their own."""
    async with connected(database) as connection:
        for query in queries:
            await connection.execute(SQL[query])


# -- records on Kafka ------------------------------------------------------------------------------

FRAME_BYTES_MAX: Final = 512 * 1024
"""As the engine's frames are by default; a batch that needs more goes out in several records."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Asked for at once, as by the engine's receiver."""

_ACKS_WAITING_MAX: Final = 64
"""Records on their way to the broker: enough to keep it busy, few enough to bound memory."""

encode_body = encode_event = msgspec.msgpack.Encoder().encode
decode_body = msgspec.msgpack.Decoder(list[Event]).decode
decode_event = msgspec.msgpack.Decoder(Event).decode


def bodies(events: list[Event]) -> Iterator[bytes]:
    """Yield `events` encoded, in as many pieces as records need."""
    body = encode_body(events)
    if len(body) <= FRAME_BYTES_MAX or len(events) == 1:
        yield body
        return
    middle = len(events) // 2
    yield from bodies(events[:middle])
    yield from bodies(events[middle:])


class RecordSender(Openable):
    """An aiokafka producer as the engine's: acks=all, large requests, acks awaited later."""

    def __init__(self, venue: Venue) -> None:
        super().__init__()
        self._topic = venue.topic
        self._producer = make_producer(
            venue.site.kafka,
            "benchmark",
            max_batch_size=FRAME_BYTES_MAX + 4096,
            max_request_size=4 * FRAME_BYTES_MAX,
        )
        self._acks: list[Any] = []

    async def open(self) -> None:
        """Start it."""
        await self._producer.start()
        self.push_async_callback(self._producer.stop)

    async def send(self, record: bytes) -> None:
        """Hand a record to the client, which keeps their order."""
        self._acks.append(await self._producer.send(self._topic, record, partition=0))
        if len(self._acks) > _ACKS_WAITING_MAX:
            await self._acks.pop(0)

    async def settle(self) -> None:
        """Wait for every acknowledgement; raises what the broker refused."""
        acks, self._acks = self._acks, []
        for ack in acks:
            await ack


class RecordSource(Receiver):
    """An aiokafka consumer that is at the live end of the topic."""

    consumer: Any

    async def open(self) -> None:
        """Go to the live end."""
        self.consumer = make_consumer(
            self.venue.site.kafka,
            "benchmark",
            check_crcs=False,
            fetch_max_bytes=FETCH_BYTES,
            max_partition_fetch_bytes=FETCH_BYTES,
        )
        await self.consumer.start()
        self.push_async_callback(self.consumer.stop)
        at = TopicPartition(self.venue.topic, 0)
        self.consumer.assign([at])
        ends = await self.consumer.end_offsets([at])
        self.consumer.seek(at, ends[at])
