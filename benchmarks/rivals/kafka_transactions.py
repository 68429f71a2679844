"""What the two rivals on Kafka's transactions share: no database, one transaction per batch.

librdkafka (confluent-kafka) at both ends. A producer with a transactional id, a consumer that reads
only what was committed. There is nothing to read a lost order from, no fence by the database, and
an acknowledged order is in the page caches of the brokers, not on a disk.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchmarks.load import Stored
from benchmarks.rivals.records import (
    FETCH_BYTES,
    FRAME_BYTES_MAX,
    Numbering,
    drop_topic,
    new_topic,
)
from benchmarks.rivals.rival import NotWhole, Tally
from orderchain.clients.kafka_options import librdkafka_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Venue
    from orderchain.model import Event
    from sequencer import Order

_TRANSACTION_SECONDS = 60.0
_POLL_SECONDS = 1.0
_RECORDS_MAX = 10_000
_SILENCE_SECONDS = 60.0
"""After this long without a record, rereading a topic has failed."""


class KafkaTransactions(ABC):
    """Transactions without a database. Its two kinds say what a record holds."""

    title: ClassVar[str]
    ack: ClassVar[str] = "Kafka's transaction, acks=all; no database, no fsync"

    @staticmethod
    @abstractmethod
    def records(events: list[Event]) -> Iterable[bytes]:
        """Return the records of a batch."""

    @staticmethod
    @abstractmethod
    def take(tally: Tally, value: bytes) -> None:
        """Hand what a record holds to `tally`."""

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

    def producer(self, venue: Venue) -> TransactionalProducer:
        """Return the sending end."""
        return TransactionalProducer(venue, self)

    def receiver(self, venue: Venue, tally: Tally) -> CommittedReceiver:
        """Return the receiving end."""
        return CommittedReceiver(venue, tally, self)

    async def stored(self, venue: Venue) -> Stored:
        """Reread the topic from its beginning: what a later reader would find."""
        return await asyncio.to_thread(self._stored, venue)

    def _stored(self, venue: Venue) -> Stored:
        tally = Tally(is_kept=False)
        consumer = _consumer(venue, offset="beginning")
        deadline = time.monotonic() + _SILENCE_SECONDS
        try:
            while tally.rows < venue.load.all_orders:
                for message in consumer.consume(_RECORDS_MAX, _POLL_SECONDS):
                    self.take(tally, _value(message))
                    deadline = time.monotonic() + _SILENCE_SECONDS
                if time.monotonic() > deadline:
                    break
            if any(_value(message) for message in consumer.consume(1, 0.2)):
                raise NotWhole("the topic holds more than was sent")
        finally:
            consumer.close()
        return Stored(rows=tally.rows, last_id=tally.last_id)

    async def clean_up(self, venue: Venue) -> None:
        """Remove the topic."""
        await drop_topic(venue)


class TransactionalProducer:
    """One transaction per batch. The calls block, as the library's do: nothing else runs here."""

    def __init__(self, venue: Venue, kind: KafkaTransactions) -> None:
        self._venue = venue
        self._kind = kind
        self._numbering = Numbering()
        self._producer: Any = None

    async def __aenter__(self) -> Self:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                **librdkafka_options(self._venue.site.kafka),
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
        return self

    async def __aexit__(self, *error: object) -> None:
        self._producer.flush(_TRANSACTION_SECONDS)

    def ready(self, batches: Sequence[list[Order]]) -> Sequence[list[Order]]:
        """Take the orders as they are."""
        return batches

    async def send(self, batches: Sequence[list[Order]]) -> None:
        """Number, encode and send a batch, and commit it."""
        producer, topic = self._producer, str(self._venue.place["topic"])
        for batch in batches:
            producer.begin_transaction()
            for record in self._kind.records(self._numbering.events(batch)):
                producer.produce(topic, record, partition=0)
            producer.commit_transaction(_TRANSACTION_SECONDS)

    async def settle(self) -> None:
        """A committed transaction is acknowledged."""


class CommittedReceiver:
    """Reads what was committed."""

    def __init__(self, venue: Venue, tally: Tally, kind: KafkaTransactions) -> None:
        self._venue = venue
        self._tally = tally
        self._kind = kind
        self._consumer: Any = None

    async def __aenter__(self) -> Self:
        # The topic is new, so its beginning is its live end.
        self._consumer = _consumer(self._venue, offset="beginning")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._consumer.close()

    async def receive(self, until_rows: int) -> None:
        """Take record after record."""
        tally, take, consume = self._tally, self._kind.take, self._consumer.consume
        while tally.rows < until_rows:
            for message in consume(_RECORDS_MAX, 0.01):
                take(tally, _value(message))


def _consumer(venue: Venue, offset: str) -> Any:  # noqa: ANN401 - it has no types
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition

    consumer = Consumer(
        {
            **librdkafka_options(venue.site.kafka),
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
    at = OFFSET_BEGINNING if offset == "beginning" else OFFSET_END
    consumer.assign([TopicPartition(str(venue.place["topic"]), 0, at)])
    return consumer


def _value(message: Any) -> bytes:  # noqa: ANN401 - it has no types
    if message.error() is not None:
        raise NotWhole(f"the broker says {message.error()}")
    value: bytes = message.value()
    return value
