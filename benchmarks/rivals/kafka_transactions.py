"""Kafka's transactions: no database, one transaction per batch; a record is an event, or a frame.

librdkafka (confluent-kafka) at both ends. A producer with a transactional id, a consumer that reads
only what was committed. There is nothing to read a lost order from, no fence by the database, and
an acknowledged order is in the page caches of the brokers, not on a disk.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from benchmarks.load import Stored
from benchmarks.rivals.records import (
    FETCH_BYTES,
    FRAME_BYTES_MAX,
    bodies,
    decode_body,
    decode_event,
    drop_topic,
    encode_event,
    new_topic,
)
from benchmarks.rivals.rival import NotWhole, Producer, Receiver, Rival, Tally
from orderchain.clients.options import librdkafka_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Venue
    from orderchain.model import Event
    from sequencer import Order

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
        """Encode each order."""
        return map(encode_event, events)

    async def send(self, batches: Sequence[list[Order]]) -> None:
        """Number, encode and send a batch, and commit it."""
        producer, topic = self._producer, str(self.venue.place["topic"])
        for batch in batches:
            producer.begin_transaction()
            for record in self.records(self.numbered(batch)):
                producer.produce(topic, record, partition=0)
            producer.commit_transaction(_TRANSACTION_SECONDS)

    async def settle(self) -> None:
        """A committed transaction is acknowledged."""


class _FrameProducer(_EventProducer):
    """The same with the engine's packing."""

    def records(self, events: list[Event]) -> Iterable[bytes]:
        """Encode the batch."""
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
        topic = str(self.venue.place["topic"])
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self.callback(self._consumer.close)

    def events(self, value: bytes) -> Sequence[Event]:
        """Decode one order."""
        return (decode_event(value),)

    async def receive(self, until_rows: int) -> None:
        """Take record after record."""
        tally, events, consume = self.tally, self.events, self._consumer.consume
        while tally.rows < until_rows:
            for message in consume(_RECORDS_MAX, 0.01):
                tally.take(events(_value(message)))

    def reread(self, until_rows: int) -> None:
        """Take what a later reader would find, up to a long silence. Raises NotWhole for more."""
        deadline = time.monotonic() + _SILENCE_SECONDS
        while self.tally.rows < until_rows and time.monotonic() < deadline:
            for message in self._consumer.consume(_RECORDS_MAX, _POLL_SECONDS):
                self.tally.take(self.events(_value(message)))
                deadline = time.monotonic() + _SILENCE_SECONDS
        if any(_value(message) for message in self._consumer.consume(1, 0.2)):
            raise NotWhole("the topic holds more than was sent")


class _FrameReceiver(_EventReceiver):
    """The same with frames."""

    def events(self, value: bytes) -> Sequence[Event]:
        """Decode the batch."""
        return decode_body(value)


class KafkaTransactionsEvents(Rival):
    """One record per order: what most people write."""

    title = "Kafka transactions, an event a record"
    ack = "Kafka's transaction, acks=all; no database, no fsync"
    producer = _EventProducer
    receiver: ClassVar[type[_EventReceiver]] = _EventReceiver

    def absence(self) -> str | None:
        """Return what is missing."""
        try:
            import confluent_kafka  # noqa: F401 - whether it is there
        except ImportError:
            return "confluent-kafka is not installed (pip install 'orderchain[bench]')"
        return None

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make a topic."""
        return {"topic": await new_topic("transactions", site)}

    async def stored(self, venue: Venue) -> Stored:
        """Reread the topic from its beginning."""
        tally = Tally()
        async with self.receiver(venue, tally) as receiver:
            await asyncio.to_thread(receiver.reread, venue.load.all_orders)
        return Stored(rows=tally.rows, last_id=tally.last_id)

    async def clean_up(self, venue: Venue) -> None:
        """Remove the topic."""
        await drop_topic(venue)


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
