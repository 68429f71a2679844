"""A producer for small frames of many chains."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from chain_kernel.clients.kafka import (
    AIOKafkaProducer,
    leave_client,
    make_admin,
    make_producer,
    start_client,
    started,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import connecting, is_of_one_topic
from chain_kernel.clients.topics import TopicDescription, describe_topic, describe_topics
from chain_kernel.errors import OrderchainError, RetryError
from chain_kernel.text import reason_of
from sequencer.stores.together import Together

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequencer.config import SequencerConfig


ROLE: Final = "sequencer"

RECORD_OVERHEAD_BYTES: Final = 512
"""Bytes that a record batch adds to the value of its only record: below 100, with room."""

CLOSE_SECONDS: Final = 2.0
"""Time that the client's own stop is awaited. With the broker away it waits until its records have
expired, which takes up to twice `publish_seconds`."""

_SHARED_BYTES_MAX: Final = 2**16
"""The largest send over a shared producer. For larger ones its requests, of many partitions, cost
more than those of a producer of one partition."""

_REQUEST_BYTES_MAX: Final = 2**26
"""All chains at once: brokers take 100 MiB by default (`socket.request.max.bytes`)."""

_LATELY_SHARE: Final = 0.4
"""The share of `publish_seconds` in which others are acknowledged over a producer that is well. A
broker answers within a quarter, and a send over one that is silent fails after a half."""


class SharedProducer:
    """A producer for the small sends of many chains: most are heartbeats, of chains that are idle.

    A failed send replaces it once for all, unless the failure is of one topic alone. Others that
    are under way then fail, too, and are sent again. One partition delays the rest for half of
    `publish_seconds` at most: a broker answers what is replicated after a quarter of it.
    """

    def __init__(self, config: SequencerConfig, chains: int) -> None:
        """Serve up to `chains` chains that have Kafka and deadline of `config`."""
        self._kafka = KafkaConfig.of(config.kafka)
        self._seconds = config.tuning.publish_seconds
        self.bytes_max = min(_SHARED_BYTES_MAX, _REQUEST_BYTES_MAX // chains)
        self._topics = Together(self._describe)
        self._acknowledged_at = 0.0
        self._producer: AIOKafkaProducer | None = None
        self._opening: asyncio.Task[AIOKafkaProducer] | None = None

    def serves(self, config: SequencerConfig) -> bool:
        """Return whether a chain with `config` may use it."""
        wanted = KafkaConfig.of(config.kafka), config.tuning.publish_seconds
        return wanted == (self._kafka, self._seconds)

    async def opened(self) -> AIOKafkaProducer:
        """Return the producer of now; all that wait for it share one try. Raises RetryError."""
        if self._producer is not None:
            return self._producer
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="orderchain shared producer")
        opening = self._opening
        await asyncio.wait([opening])
        if opening.cancelled():
            raise RetryError("the shared producer was closed")
        if error := opening.exception():
            raise RetryError(reason_of(error))  # one for each that has waited
        return opening.result()

    async def topic(self, chain_id: int, name: str) -> TopicDescription:
        """Describe the topic of a chain; one client does so for all that ask at the same time.

        Raises OrderchainError.
        """
        found = await self._topics.ask(chain_id, name)
        if isinstance(found, TopicDescription):
            return found
        raise RetryError("the broker does not describe the topic") if found is None else found

    def note_acknowledged(self) -> None:
        """Note that a send over it was acknowledged just now."""
        self._acknowledged_at = asyncio.get_running_loop().time()

    async def judge(self, producer: AIOKafkaProducer, error: Exception) -> bool:
        """Return whether the failure of a send is of its chain alone; else replace `producer`."""
        if is_of_one_topic(error):
            return True
        if self._producer is not producer:  # another chain's failure has replaced it
            return False
        idle = asyncio.get_running_loop().time() - self._acknowledged_at
        # A producer that has ended by itself acknowledges nothing more.
        if getattr(error, "retriable", True) and idle < self._seconds * _LATELY_SHARE:
            return True
        self._producer = None
        await leave_client(producer, CLOSE_SECONDS)
        return False

    async def close(self) -> None:
        """Close it, once all sinks are closed; never raises."""
        await self._topics.close()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        producer, self._producer = self._producer, None
        if producer is not None:
            await leave_client(producer, CLOSE_SECONDS)

    async def _open(self) -> AIOKafkaProducer:
        bytes_max = self.bytes_max + RECORD_OVERHEAD_BYTES
        try:
            async with connecting(self._kafka, self._seconds):
                producer = make_producer(
                    self._kafka,
                    ROLE,
                    max_batch_size=bytes_max,
                    max_request_size=bytes_max,
                    request_timeout_ms=int(self._seconds * 500),
                    replicas_ms=int(self._seconds * 250),
                )
                try:
                    await start_client(producer)
                except BaseException:
                    await leave_client(producer, CLOSE_SECONDS)
                    raise
            self._producer = producer
        finally:
            self._opening = None
        return producer

    async def _describe(
        self, names: Mapping[int, str]
    ) -> Mapping[int, TopicDescription | OrderchainError]:
        """Describe the topics of chains. What one of them is refused for is its own answer."""
        async with (
            connecting(self._kafka, self._seconds),
            started(make_admin(self._kafka, ROLE), CLOSE_SECONDS) as admin,
        ):
            try:
                found = await describe_topics(admin, self._kafka, set(names.values()))
                return {chain_id: found[name] for chain_id, name in names.items()}
            except OrderchainError:
                answers: dict[int, TopicDescription | OrderchainError] = {}
                for chain_id, name in names.items():
                    try:
                        answers[chain_id] = await describe_topic(admin, self._kafka, name)
                    except OrderchainError as error:
                        answers[chain_id] = error
                return answers
