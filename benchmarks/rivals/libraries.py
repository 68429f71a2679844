"""Rivals that bring libraries of their own, each imported where it is used.

- Kafka's transactions: no database, one transaction per batch; a record is an event, or a frame.
  librdkafka (confluent-kafka) at both ends: a producer with a transactional id, a consumer that
  reads only what was committed. There is nothing to read a lost order from, no fence by the
  database, and an acknowledged order is in the page caches of the brokers, not on a disk.
- The recorder of the library `eventsourcing`, on the same PostgreSQL, as one long aggregate. Its
  notification log is what other processes read: the receiving end selects from it by position.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from benchmarks.rivals.librdkafka import librdkafka_options
from benchmarks.rivals.rival import (
    FETCH_BYTES,
    FRAME_BYTES_MAX,
    NotWhole,
    Producer,
    Receiver,
    Rival,
    RowCounter,
    bodies,
    decode_body,
    decode_event,
    encode_event,
)
from chain_kernel.clients.database_config import DatabaseConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Venue
    from chain_kernel.model import Event
    from sequencer import Order

# -- Kafka's transactions --------------------------------------------------------------------------

_TRANSACTION_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 1.0
_RECORDS_MAX: Final = 10_000
_SILENCE_SECONDS: Final = 60.0
"""After this long without a record, rereading a topic has failed."""


class _EventProducer(Producer):
    """One transaction per batch. The calls block, as the library's do: nothing else runs here."""

    _producer: Any

    async def open(self) -> None:
        """Get a transactional id of its own."""
        from confluent_kafka import Producer as Client

        self._producer = Client(
            {
                **librdkafka_options(self.venue.site.kafka),
                "transactional.id": f"rival-{secrets.token_hex(6)}",
                "acks": "all",
                "linger.ms": 5,  # committing flushes at once: this only fills the requests
                "batch.size": 2 * FRAME_BYTES_MAX,
                "batch.num.messages": 10_000,
                "message.max.bytes": 4 * FRAME_BYTES_MAX,
                "queue.buffering.max.messages": 100_000,
            }
        )
        self._producer.init_transactions(_TRANSACTION_SECONDS)
        self.callback(self._producer.flush, _TRANSACTION_SECONDS)

    def records(self, events: list[Event]) -> Iterable[bytes]:
        return map(encode_event, events)

    async def send(self, batches: Sequence[list[Order]]) -> None:
        producer, topic = self._producer, self.venue.topic
        for batch in batches:
            producer.begin_transaction()
            for record in self.records(self.numbered(batch)):
                producer.produce(topic, record, partition=0)
            producer.commit_transaction(_TRANSACTION_SECONDS)


class _FrameProducer(_EventProducer):
    """The same with the engine's packing."""

    def records(self, events: list[Event]) -> Iterable[bytes]:
        return bodies(events)


class _EventReceiver(Receiver):
    """Reads what was committed."""

    _consumer: Any

    async def open(self) -> None:
        """Begin at the beginning: the topic is new, so that is its live end."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        self._consumer = Consumer(
            {
                **librdkafka_options(self.venue.site.kafka),
                "group.id": f"rival-{secrets.token_hex(6)}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": False,
                "fetch.wait.max.ms": 100,
                "fetch.message.max.bytes": FETCH_BYTES,
                "queued.min.messages": 100_000,
            }
        )
        self._consumer.assign([TopicPartition(self.venue.topic, 0, OFFSET_BEGINNING)])
        self.callback(self._consumer.close)

    def events(self, value: bytes) -> Sequence[Event]:
        return (decode_event(value),)

    async def receive(self, until_rows: int) -> None:
        counter, events, consume = self.counter, self.events, self._consumer.consume
        while counter.rows < until_rows:
            for message in consume(_RECORDS_MAX, 0.01):
                counter.take(events(_value(message)))

    def reread(self, until_rows: int) -> None:
        """Take what a later reader would find, up to a long silence. Raises NotWhole for more."""
        deadline = time.monotonic() + _SILENCE_SECONDS
        while self.counter.rows < until_rows and time.monotonic() < deadline:
            for message in self._consumer.consume(_RECORDS_MAX, _POLL_SECONDS):
                self.counter.take(self.events(_value(message)))
                deadline = time.monotonic() + _SILENCE_SECONDS
        if any(_value(message) for message in self._consumer.consume(1, 0.2)):
            raise NotWhole("the topic holds more than was sent")


class _FrameReceiver(_EventReceiver):
    """The same with frames."""

    def events(self, value: bytes) -> Sequence[Event]:
        return decode_body(value)


class KafkaTransactionsEvents(Rival):
    """One record per order: what most people write."""

    title = "Kafka transactions, an event a record"
    producer = _EventProducer
    receiver: ClassVar[type[_EventReceiver]] = _EventReceiver
    topic = "transactions"

    async def stored(self, venue: Venue) -> int:
        """Reread the topic from its beginning."""
        counter = RowCounter()
        async with self.receiver(venue, counter) as receiver:
            await asyncio.to_thread(receiver.reread, venue.load.all_orders)
        return counter.rows


class KafkaTransactionsFrames(KafkaTransactionsEvents):
    """One record per batch: the engine's packing without its database."""

    title = "Kafka transactions, a frame a record"
    producer = _FrameProducer
    receiver = _FrameReceiver


def _value(message: Any) -> bytes:  # noqa: ANN401 - it has no types
    if message.error() is not None:
        raise NotWhole(f"the broker says {message.error()}")
    value: bytes = message.value()
    return value


# -- eventsourcing ---------------------------------------------------------------------------------

_TABLE: Final = "rival_stored_events"
_CHAIN: Final = UUID(int=1)
_NOTIFICATIONS_MAX: Final = 5_000
_IDLE_SECONDS: Final = 0.001


def _recorder(database: DatabaseConfig) -> tuple[Any, Any]:
    from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

    # The fields are libpq's, which is what the library connects by; it hands on five of them.
    given = {name: getattr(database, name) for name in DatabaseConfig.__struct_fields__}
    first: dict[str, Any] = {
        name: str(given.pop(name)) for name in ("dbname", "host", "port", "user", "password")
    }
    # With its functions in the database: faster here than its statements, at every batch size.
    datastore: Any = PostgresDatastore(**first, enable_db_functions=True)
    datastore.pool.kwargs.update({name: value for name, value in given.items() if value})
    return datastore, PostgresApplicationRecorder(datastore, events_table_name=_TABLE)


class _RecorderEnd(Producer):
    """`insert_events`, one transaction per batch. The calls block, as the library's do."""

    _recorder: Any

    async def open(self) -> None:
        datastore, self._recorder = _recorder(self.venue.site.admin)
        self.callback(datastore.close)

    async def send(self, batches: Sequence[list[Order]]) -> None:
        from eventsourcing.persistence import StoredEvent

        for batch in batches:
            self._recorder.insert_events(
                [
                    StoredEvent(_CHAIN, event.id, "order", encode_event(event))
                    for event in self.numbered(batch)
                ]
            )


class _SelectingReceiver(Receiver):
    """Selects repeatedly what came since."""

    _recorder: Any
    _position = 0

    async def open(self) -> None:
        datastore, self._recorder = _recorder(self.venue.site.admin)
        self.callback(datastore.close)

    async def receive(self, until_rows: int) -> None:
        counter, select = self.counter, self._recorder.select_notifications
        while counter.rows < until_rows:
            page = select(self._position + 1, _NOTIFICATIONS_MAX)
            if not page:
                time.sleep(_IDLE_SECONDS)  # noqa: ASYNC251 - the library blocks as well
                continue
            counter.take([decode_event(notification.state) for notification in page])
            self._position = page[-1].id


class EventSourcing(Rival):
    """Events of one aggregate, with versions in place of ids."""

    title = "eventsourcing (PyPI)"
    producer = _RecorderEnd
    receiver = _SelectingReceiver
    rows = "recorded_rows"
    tables = ("recorded_drop",)

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make its table, as the library makes it."""

        def create() -> None:
            datastore, recorder = _recorder(site.admin)
            with closing(datastore):
                recorder.create_table()

        prepared = await super().prepare(site, load)
        await asyncio.to_thread(create)
        return prepared
