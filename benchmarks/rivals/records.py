"""What rivals on Kafka share: a topic of a run, its consumer and producer, orders as frames."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

import msgspec

from benchmarks.chains import make_topic, remove_topic
from benchmarks.rivals.rival import Opened, Receiver
from orderchain.clients.kafka import TopicPartition, make_consumer, make_producer
from orderchain.model import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.chains import Site
    from benchmarks.load import Venue

FRAME_BYTES_MAX: Final = 512 * 1024
"""As the engine's frames are by default; a batch that needs more goes out in several records."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Asked for at once, as by the engine's receiver."""

_ACKS_WAITING_MAX: Final = 64
"""Records on their way to the broker: enough to keep it busy, few enough to bound memory."""

encode_body = msgspec.msgpack.Encoder().encode
decode_body = msgspec.msgpack.Decoder(list[Event]).decode
encode_event = msgspec.msgpack.Encoder().encode
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


async def new_topic(kind: str, site: Site) -> str:
    """Make a topic that no run had before, and return its name."""
    topic = f"rival.{kind}.{secrets.token_hex(6)}"
    await make_topic(site, topic)
    return topic


async def drop_topic(venue: Venue) -> None:
    """Remove the topic of a run."""
    await remove_topic(venue.site, str(venue.place["topic"]))


class RecordSender(Opened):
    """An aiokafka producer as the engine's: acks=all, large requests, acks awaited later."""

    def __init__(self, venue: Venue) -> None:
        super().__init__()
        self._topic = str(venue.place["topic"])
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
        at = TopicPartition(str(self.venue.place["topic"]), 0)
        self.consumer.assign([at])
        ends = await self.consumer.end_offsets([at])
        self.consumer.seek(at, ends[at])
