"""What the tests of the consumer's side share: messages on real topics, effects in a real database.

The business table has no unique constraint: an effect that happens twice shows as two rows.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.protocol.admin import DeleteGroupsRequest

from outbox.consumer.config import ConsumerConfig
from outbox.consumer.consumer import Consumer
from outbox.consumer.delivery import Delivery
from outbox.destination import Destination
from outbox.message import Message, draw_message_ids
from outbox.records import (
    APPLIED,
    Confirm,
    ConfirmRecord,
    common_headers,
    decode_confirms,
    record_headers,
)
from tests.deadlines import deadline
from tests.opened import administering

CREATE = "CREATE TABLE effect (message_id uuid NOT NULL, note text NOT NULL)"
TOKEN = bytes(range(16))
"""Every message has one: what its sender makes it from is no business of a consumer's."""
APPLY = "INSERT INTO effect VALUES ($1, $2)"


@dataclass
class Rig:
    """One destination with one consumer, and what the test does to them."""

    bootstrap: str
    database: str
    topic: str
    consumer_name: str
    producer: AIOKafkaProducer
    admin: asyncpg.Connection
    messages: dict[UUID, Message] = field(default_factory=dict)

    @property
    def destination(self) -> Destination:
        return Destination(name="clearing", topic=self.topic, consumers=(self.consumer_name,))

    def message(self, note: str, key: str | None = None) -> Message:
        (message_id,) = draw_message_ids(1)
        return Message(message_id, "clearing", note.encode(), key)

    async def send(
        self,
        *messages: Message,
        partition: int = 0,
        oldest: UUID | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Send records in this order; return the offset of the last one."""
        common = common_headers(self.destination, oldest)
        offset = -1
        for message in messages:
            shown = await self.producer.send_and_wait(
                self.topic,
                message.payload,
                key=None if message.key is None else message.key.encode(),
                partition=partition,
                headers=record_headers(message.message_id, message.headers, common, TOKEN),
                timestamp_ms=timestamp_ms,
            )
            offset = shown.offset
        return offset

    async def send_raw(self, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        await self.producer.send_and_wait(self.topic, value, partition=0, headers=headers)

    def config(self, **settings: Any) -> ConsumerConfig:
        return ConsumerConfig(**{
            "name": self.consumer_name, "topics": (self.topic,),
            "kafka": self.bootstrap,
            "database": self.database, "retry_poll_seconds": 0.05, "busy_seconds": 0.05,
            "commit_seconds": 0.05, **settings,
        })  # fmt: skip

    def consumer(self, *, clock: Any = None, **settings: Any) -> Consumer:
        filtering = settings.pop("filter", None)
        return Consumer(self.config(**settings), filter=filtering, clock=clock)

    async def work_off(
        self,
        consumer: Consumer,
        until: Message,
        handle: Callable[[Delivery, Any], Awaitable[None]] | None = None,
    ) -> list[str]:
        """Run the consumer until it has handled `until`; return the notes that it was given."""
        async with deadline(), consumer:
            return await self.run_until(consumer, until, handle)

    async def run_until(
        self,
        consumer: Consumer,
        until: Message,
        handle: Callable[[Delivery, Any], Awaitable[None]] | None = None,
    ) -> list[str]:
        """Do the same with a consumer that is started, and is not closed."""
        notes: list[str] = []

        async def handler(delivery: Delivery, connection: Any) -> None:
            notes.append(delivery.payload.decode())
            await (handle or apply)(delivery, connection)
            if delivery.message_id == until.message_id:
                consumer.stop()

        async with deadline():
            await consumer.run(handler)
        return notes

    async def add_partitions(self, count: int) -> None:
        """Add partitions to the topic until it has so many."""
        async with self._admin() as admin:
            await admin.create_partitions({self.topic: NewPartitions(count)})
        async with deadline():
            while len(await self.producer.partitions_for(self.topic)) < count:
                await self.producer.client.force_metadata_update()  # a round trip to the broker

    async def expire_offsets(self) -> None:
        """Have the broker forget what the group has committed, as it does after a week of rest."""
        async with self._admin() as admin:
            request = DeleteGroupsRequest([self.consumer_name])
            answer = await admin._send_to_controller(request)  # which is the only broker
        assert [code for _, code in answer.results] == [0]

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        async with administering(self.bootstrap) as admin:
            yield admin

    async def effects(self) -> Counter[str]:
        """Return how often each note took effect."""
        return Counter(row["note"] for row in await self.admin.fetch("SELECT note FROM effect"))

    @asynccontextmanager
    async def _group(self) -> AsyncIterator[AIOKafkaConsumer]:
        async with AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=self.consumer_name, enable_auto_commit=False
        ) as reader:
            yield reader

    async def committed(self, partition: int = 0) -> int | None:
        """Return the offset that the consumer has committed."""
        async with self._group() as reader:
            at = TopicPartition(self.topic, partition)
            reader.assign([at])
            offset: int | None = await reader.committed(at)
            return offset

    async def until_committed(self, *offsets: int) -> None:
        """Return once the first partitions are committed so far; any offset will do for -1."""
        async with deadline(), self._group() as reader:
            for partition, offset in enumerate(offsets):
                at = TopicPartition(self.topic, partition)
                reader.assign([at])
                while (found := await reader.committed(at)) is None or found < offset:
                    pass  # each question is a round trip to the broker

    async def confirm_records(self, count: int) -> list[ConfirmRecord]:
        """Return the confirm records sent so far, at least so many that they hold `count`."""
        records: list[ConfirmRecord] = []
        async with (
            AIOKafkaConsumer(
                self.destination.confirm_topic,
                bootstrap_servers=self.bootstrap,
                auto_offset_reset="earliest",
            ) as reader,
            deadline(),
        ):
            while sum(len(record.confirms) for record in records) < count:
                record = await reader.getone()
                assert record.key == self.consumer_name.encode()
                records.append(decode_confirms(record.value))
        return records

    async def confirms(self, count: int) -> list[Confirm]:
        """Return the confirms sent so far, at least `count`."""
        return [one for record in await self.confirm_records(count) for one in record.confirms]

    async def applied_ids(self, count: int) -> Counter[bytes]:
        """Return how often each message was confirmed as applied."""
        return Counter(
            confirm.message_id for confirm in await self.confirms(count) if confirm.kind == APPLIED
        )


async def apply(delivery: Delivery, connection: Any) -> None:
    """The effect that the tests count."""
    await connection.execute(APPLY, delivery.message_id, delivery.payload.decode())


async def apply_many(deliveries: Sequence[Delivery], connection: Any) -> None:
    await connection.executemany(
        APPLY, [(delivery.message_id, delivery.payload.decode()) for delivery in deliveries]
    )
