"""The broker, as the publisher sees it: one partition that acknowledges."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from orderchain.clients.kafka import TopicDescription
from orderchain.clients.topic_durability import durability_warning
from orderchain.errors import ConnectError, RetryError, TopicError
from orderchain.kafka_client import close_client, leave_client, start_client
from orderchain.reasons import reason_of
from orderchain.topic import topic_refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequencer.config import SequencerConfig

_RECORD_OVERHEAD_BYTES: Final = 512
"""What a record batch adds to the value of its only record: below 100 bytes, with room."""

_CLOSE_SECONDS: Final = 2.0
"""How long the client's own stop is awaited. With the broker away it waits until its records have
expired, which takes up to twice `publish_seconds`."""

_FETCH_MS: Final = 500
"""How long a fetch of the topic's end waits before it is asked for again."""

_LOSS: Final = "receivers read what is lost there from the database, which takes longer"

_ERRORS: Final = (KafkaError, OSError, TimeoutError)

_log = logging.getLogger(__name__)


class KafkaFrameSink:
    """A producer of one partition, thrown away after any error; see `orderchain.ports.FrameSink`.

    It is not idempotent on purpose: repeats are harmless here, and an idempotent producer of this
    library refuses every later send on the partition after one failure (aiokafka issue 1017).
    """

    def __init__(self, config: SequencerConfig) -> None:
        self._config = config
        self._producer: AIOKafkaProducer | None = None
        self._topic = ""
        self._warning: str | None = None
        self._partition = 0
        self.frame_bytes_max = config.frame_bytes_max

    async def start(self, topic: str, partition: int) -> None:
        """Connect and check the topic; see `orderchain.ports.FrameSink.start`."""
        self._topic, self._partition = topic, partition
        try:
            async with asyncio.timeout(self._config.connect_seconds):
                await self._open()
        except _ERRORS as error:
            await self.close()
            raise ConnectError(
                "kafka", self._config.kafka, f"a broker that answers ({type(error).__name__})"
            ) from error

    async def last_records(self, topic: str, partition: int, at_most: int) -> list[bytes | None]:
        """Read the end of the topic; see `orderchain.ports.FrameSink.last_records`."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._config.kafka, enable_auto_commit=False, auto_offset_reset="none"
        )
        try:
            async with asyncio.timeout(self._config.connect_seconds):
                await start_client(consumer)
                return await _last_values(consumer, TopicPartition(topic, partition), at_most)
        except _ERRORS as error:
            raise RetryError(f"kafka: {reason_of(error)}") from error
        finally:
            await close_client(consumer, _CLOSE_SECONDS)

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send and wait for the broker; see `orderchain.ports.FrameSink.send`."""
        try:
            async with asyncio.timeout(self._config.publish_seconds):
                producer = self._producer or await self._open()
                acks = [
                    await producer.send(self._topic, frame, partition=self._partition)
                    for frame in frames
                ]
                await asyncio.gather(*acks)
        except (*_ERRORS, TopicError) as error:
            await self.close()
            raise RetryError(f"kafka: {reason_of(error)}") from error

    async def close(self) -> None:
        """Throw the producer away."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await leave_client(producer, _CLOSE_SECONDS)

    async def _open(self) -> AIOKafkaProducer:
        """Open a producer that keeps to what the topic takes now."""
        await self._read_topic()
        producer = AIOKafkaProducer(
            bootstrap_servers=self._config.kafka,
            acks="all",
            # Room for several frames a request: one request a partition is in flight at a time, so
            # bytes per round trip are the ceiling of the rate.
            max_batch_size=self.frame_bytes_max + _RECORD_OVERHEAD_BYTES,
            max_request_size=self.frame_bytes_max + _RECORD_OVERHEAD_BYTES,
            request_timeout_ms=int(self._config.publish_seconds * 1_000),
        )
        self._producer = producer
        await start_client(producer)
        return producer

    async def _read_topic(self) -> None:
        """Read how large a record may be.

        Raises TopicError unless the topic has the one partition and keeps every record.
        """
        admin = AIOKafkaAdminClient(bootstrap_servers=self._config.kafka)
        try:
            await start_client(admin)
            (described,) = await admin.describe_topics([self._topic])
            partitions = 0 if described["error_code"] else len(described["partitions"])
            settings = await _topic_settings(admin, self._topic) if partitions else {}
            if refusal := topic_refusal(self._topic, partitions, settings):
                raise refusal
            replicas = min(len(each["replicas"]) for each in described["partitions"])
            self._warn_of_one_copy(
                TopicDescription(
                    name=self._topic, partitions=partitions, replicas=replicas, settings=settings
                )
            )
            self._keep_below(int(settings["max.message.bytes"]))
        finally:
            await close_client(admin, _CLOSE_SECONDS)

    def _warn_of_one_copy(self, topic: TopicDescription) -> None:
        """Warn once for as long as it is the same: the topic is read again by each new producer."""
        warning = durability_warning([topic], _LOSS)
        if warning is not None and warning != self._warning:
            _log.warning("%s", warning)
        self._warning = warning

    def _keep_below(self, record_bytes_max: int) -> None:
        """Take over how large a record may be; the setting of ours is the upper bound."""
        bytes_max = min(self._config.frame_bytes_max, record_bytes_max - _RECORD_OVERHEAD_BYTES)
        if bytes_max < self._config.frame_bytes_max:
            _log.warning(
                "topic %s: max.message.bytes is %d: frames are cut to %d bytes, not %d",
                self._topic,
                record_bytes_max,
                bytes_max,
                self._config.frame_bytes_max,
            )
        self.frame_bytes_max = bytes_max


async def _topic_settings(admin: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    """Return the settings of `topic` by name."""
    (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    for error_code, message, _, _, entries in response.resources:
        if error_code:
            raise RetryError(f"kafka: settings of topic {topic}: {message}")
        return {entry[0]: entry[1] for entry in entries}
    raise RetryError(f"kafka: no settings of topic {topic}")


async def _last_values(
    consumer: AIOKafkaConsumer, place: TopicPartition, at_most: int
) -> list[bytes | None]:
    """Return the values of the last records that are there now."""
    consumer.assign([place])
    first = (await consumer.beginning_offsets([place]))[place]
    end = (await consumer.end_offsets([place]))[place]
    offset = max(first, end - at_most)
    consumer.seek(place, offset)
    values: list[bytes | None] = []
    while offset < end:
        found = await consumer.getmany(place, timeout_ms=_FETCH_MS)
        values += [record.value for record in found.get(place, ())]
        offset = await consumer.position(place)
    return values
