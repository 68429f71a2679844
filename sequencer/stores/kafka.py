"""The broker, as the publisher sees it: one partition that acknowledges."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from chain_kernel.clients.kafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    TopicPartition,
    leave_client,
    make_admin,
    make_consumer,
    make_producer,
    start_client,
    started,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, connecting, lasting_refusal
from chain_kernel.clients.topics import TopicDescription, describe_topic, durability_warning
from chain_kernel.errors import OrderchainError, RetryError, TopicError
from chain_kernel.frame import topic_refusal
from chain_kernel.text import reason_of
from chain_kernel.tracing import TRACEPARENT
from sequencer.stores.shared_producer import (
    CLOSE_SECONDS,
    RECORD_OVERHEAD_BYTES,
    ROLE,
    SharedProducer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequencer.config import SequencerConfig


_FETCH_MS: Final = 500
"""Time that a fetch of the topic's end waits before it is repeated."""

_APART_SECONDS: Final = 30.0
"""Time that a chain whose sends have failed keeps to a producer of its own, and that one which is
not used is kept."""

_LOSS: Final = "receivers read what is lost there from the database, which takes longer"

_log = logging.getLogger(__name__)


class KafkaFrameSink:
    """Implements `chain_kernel.ports.FrameSink` with a producer that any error discards.

    It is deliberately not idempotent: repeats are harmless here, and an idempotent producer of this
    library refuses every later send on the partition after one failure (aiokafka issue 1017).
    Small sends go over `shared`, if there is one. What the broker refuses for this topic alone, and
    a failure while it acknowledges others, ends no producer that others use: for some time
    the sends go over one of its own.
    """

    def __init__(self, config: SequencerConfig, *, shared: SharedProducer | None = None) -> None:
        self._tuning = config.tuning
        self._kafka = KafkaConfig.of(config.kafka)
        self._shared = shared if shared is not None and shared.serves(config) else None
        self._chain_id = config.chain_id
        self._producer: AIOKafkaProducer | None = None
        self._is_checked = False  # since the last close
        self._apart_until = 0.0
        self._alone_at = 0.0
        """Time at which its own producer was last used."""
        self._topic = ""
        self._warning: str | None = None
        self._partition = 0
        self.frame_bytes_max = config.tuning.frame_bytes_max

    async def start(self, topic: str, partition: int) -> None:
        """Connect and check the topic."""
        self._topic, self._partition = topic, partition
        try:
            if self._shared is None:
                await self._open(self._tuning.connect_seconds)
            else:
                self._check(await self._shared.topic(self._chain_id, topic))
                await self._shared.opened()
        except OrderchainError:
            await self.close()
            raise

    async def last_records(self, topic: str, partition: int, at_most: int) -> list[bytes | None]:
        """Read the end of the topic."""
        try:
            async with (
                connecting(self._kafka, self._tuning.connect_seconds, doing=f"read topic {topic}"),
                started(make_consumer(self._kafka, ROLE), CLOSE_SECONDS) as consumer,
            ):
                return await _last_values(consumer, TopicPartition(topic, partition), at_most)
        except OrderchainError as error:
            raise RetryError(reason_of(error)) from error

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        """Send and wait for the broker."""
        shared = self._shared if self._may_share(frames) else None
        try:
            if shared is None:
                await self._send_alone(frames, traceparents)
            else:
                await self._send_shared(shared, frames, traceparents)
        except TopicError:
            raise
        except OrderchainError as error:
            raise RetryError(reason_of(error)) from error
        except DRIVER_ERRORS as error:
            raise RetryError(self._reason(error)) from error

    def _may_share(self, frames: Sequence[bytes]) -> bool:
        """Return whether `frames`, as one record batch, are small enough for producer and topic."""
        if self._shared is None or asyncio.get_running_loop().time() < self._apart_until:
            return False
        size = sum(map(len, frames)) + (len(frames) - 1) * RECORD_OVERHEAD_BYTES
        return size <= min(self._shared.bytes_max, self.frame_bytes_max)

    async def _send_alone(self, frames: Sequence[bytes], traceparents: Sequence[str]) -> None:
        self._alone_at = asyncio.get_running_loop().time()
        try:
            # To open has a time of its own, which leaves some to find out why it failed.
            producer = self._producer or await self._open(self._tuning.publish_seconds)
            await self._acknowledged(producer, frames, traceparents)
        except (OrderchainError, *DRIVER_ERRORS):
            if self._apart_until:
                self._stay_apart()
            await self._drop()
            raise

    async def _send_shared(
        self, shared: SharedProducer, frames: Sequence[bytes], traceparents: Sequence[str]
    ) -> None:
        self._apart_until = 0.0  # it is well again
        # One of its own was for that, or for large frames: a thousand chains would keep as many.
        if asyncio.get_running_loop().time() - self._alone_at > _APART_SECONDS:
            await self._drop()
        producer = await shared.opened()
        if not self._is_checked:
            self._check(await shared.topic(self._chain_id, self._topic))
        try:
            await self._acknowledged(producer, frames, traceparents)
        except DRIVER_ERRORS as error:
            self._is_checked = False
            if await shared.judge(producer, error):
                self._stay_apart()
            raise
        shared.note_acknowledged()

    async def _acknowledged(
        self, producer: AIOKafkaProducer, frames: Sequence[bytes], traceparents: Sequence[str]
    ) -> None:
        async with asyncio.timeout(self._tuning.publish_seconds):
            traces = traceparents or [""] * len(frames)
            acks = [
                await producer.send(
                    self._topic,
                    frame,
                    partition=self._partition,
                    headers=[(TRACEPARENT, trace.encode())] if trace else None,
                )
                for frame, trace in zip(frames, traces, strict=True)
            ]
            # Most sends are one heartbeat, for which `gather` costs more than the wait itself.
            await (acks[0] if len(acks) == 1 else asyncio.gather(*acks))

    def _stay_apart(self) -> None:
        self._apart_until = asyncio.get_running_loop().time() + _APART_SECONDS

    def _reason(self, error: Exception) -> str:
        if refusal := lasting_refusal(error, self._kafka, f"write to topic {self._topic}"):
            return reason_of(refusal)
        silent = f"no acknowledgement within {self._tuning.publish_seconds:g} s"
        reason = silent if isinstance(error, TimeoutError) else reason_of(error)
        return f"kafka: {self._kafka.bootstrap_servers}: {reason}"

    async def close(self) -> None:
        """Discard the producer, unless it is shared."""
        self._is_checked = False
        await self._drop()

    async def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await leave_client(producer, CLOSE_SECONDS)

    async def _open(self, seconds: float) -> AIOKafkaProducer:
        """Open a producer that keeps to the topic's current limit."""
        if self._shared is not None:
            self._check(await self._shared.topic(self._chain_id, self._topic))
        async with connecting(self._kafka, seconds):
            if self._shared is None:
                async with started(make_admin(self._kafka, ROLE), CLOSE_SECONDS) as admin:
                    self._check(await describe_topic(admin, self._kafka, self._topic))
            # Room for several frames per request: one request per partition is in flight at a time,
            # so bytes per round trip limit the rate.
            room = self.frame_bytes_max + RECORD_OVERHEAD_BYTES
            self._producer = producer = make_producer(
                self._kafka,
                ROLE,
                max_batch_size=room,
                max_request_size=room,
                request_timeout_ms=int(self._tuning.publish_seconds * 1_000),
            )
            await start_client(producer)
        return producer

    def _check(self, topic: TopicDescription) -> None:
        """Note how large a record may be.

        Raises TopicError unless the topic has exactly one partition and keeps every record.
        """
        if refusal := topic_refusal(topic.name, topic.partitions, topic.settings):
            raise refusal
        self._note_one_copy(topic)
        self._keep_below(int(topic.settings["max.message.bytes"]))
        self._is_checked = True

    def _note_one_copy(self, topic: TopicDescription) -> None:
        """Log it once while it stays the same: each new producer reads the topic again.

        The level is info: what is lost there costs time, but no order.
        """
        warning = durability_warning([topic], _LOSS)
        if warning is not None and warning != self._warning:
            _log.info("%s", warning)
        self._warning = warning

    def _keep_below(self, record_bytes_max: int) -> None:
        """Adopt the topic's limit for a record; our own setting is the upper bound."""
        bytes_max = min(self._tuning.frame_bytes_max, record_bytes_max - RECORD_OVERHEAD_BYTES)
        if bytes_max < self._tuning.frame_bytes_max:
            _log.warning(
                "topic %s: max.message.bytes is %d: frames are cut to %d bytes, not %d",
                self._topic,
                record_bytes_max,
                bytes_max,
                self._tuning.frame_bytes_max,
            )
        self.frame_bytes_max = bytes_max


async def _last_values(
    consumer: AIOKafkaConsumer, place: TopicPartition, at_most: int
) -> list[bytes | None]:
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
