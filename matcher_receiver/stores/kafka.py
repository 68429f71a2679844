"""Frames of one chain, read from its topic."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Self

from chain_kernel.clients.kafka import (
    AIOKafkaConsumer,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicPartition,
    UnreadableRecord,
    close_client,
    make_admin,
    make_consumer,
    start_client,
    started,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, connecting, reading_error
from chain_kernel.clients.session import ClosedAtExit
from chain_kernel.clients.topics import describe_topic
from chain_kernel.errors import RetryError, SettingError, TopicError
from chain_kernel.frame import topic_refusal
from chain_kernel.tasks import HomeLoop
from chain_kernel.text import reason_of
from chain_kernel.tracing import find_tracing, traced_record

if TYPE_CHECKING:
    from matcher_receiver.config import KafkaSourceConfig

_log = logging.getLogger(__name__)

PROBE_EVERY_SECONDS: Final = 5.0
"""Time between two requests to a silent broker; a broker that sends records is not asked."""

PROBE_SECONDS: Final = 1.0
"""Deadline of such a request: the receiver does not look at the database for so long."""


class KafkaFrameSource(ClosedAtExit):
    """Implements `chain_kernel.ports.FrameSource` over aiokafka.

    It starts at the live end and goes back there whenever its offset is no longer in the log. The
    pids show the rows in between, and they are read from the database. Values come as raw bytes;
    their checksum is in the frame, so the broker's is not computed again.
    """

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._kafka = KafkaConfig.of(config.kafka)
        self._role = f"receiver-{config.topic}"
        self._doing = f"read topic {config.topic}"
        self._at = TopicPartition(config.topic, config.partition)
        self._home = HomeLoop(self._role)
        self._consumer: AIOKafkaConsumer | None = None
        self._is_away = False
        self._next_probe = 0.0
        self._is_traced = find_tracing() is not None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    has_rows: Final = True

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition that it reads."""
        return self._at.topic, self._at.partition

    def __str__(self) -> str:
        return f"topic {self._config.topic}"

    async def start(self) -> None:
        """Check the topic and go to the live end."""
        self._home.join()
        try:
            async with connecting(self._kafka, self._config.connect_seconds, doing=self._doing):
                await self._check_topic()
                await self._start_consumer()
        except BaseException:
            await self.close()
            raise

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the values of the next records, empty when none came within `timeout_seconds`.

        Raises RetryError when the broker does not answer, which is asked when nothing has come, and
        for a record that cannot be decoded: it goes on after that.
        """
        self._home.check()
        consumer = self._running()
        try:
            found = await consumer.getmany(
                self._at,
                timeout_ms=int(timeout_seconds * 1000),
                max_records=self._config.records_max,
            )
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            _log.warning("%s: back to the live end: %s", self._config.topic, reason_of(error))
            await self._seek_to_live_end(consumer)
            return []
        except UnreadableRecord as error:
            # Like any bad frame it costs a read of the database, and is not asked for again.
            if error.missing is None:
                consumer.seek(self._at, error.next_offset)
            else:  # there may be many like it: one read is for all of them
                await self._seek_to_live_end(consumer)
            raise self._unanswered(error) from error
        except DRIVER_ERRORS as error:
            raise self._unanswered(error) from error
        if found:
            self._is_away = False
            records = found[self._at]
            if self._is_traced:
                return [traced_record(record.value, record.headers) for record in records]
            return [record.value for record in records]
        await self._probe(consumer)
        return []

    async def _probe(self, consumer: AIOKafkaConsumer) -> None:
        """Ask a silent broker whether it is there: aiokafka itself never reports that.

        It does not ask at every silence: while the broker is away the receiver reads from the
        database, and must not wait for a deadline of ours each time.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._next_probe:
            self._next_probe = now + PROBE_EVERY_SECONDS
            self._is_away = True
            await self._live_end(consumer, PROBE_SECONDS)
            self._is_away = False
        elif self._is_away:
            raise RetryError("the broker did not answer when last asked")

    async def close(self) -> None:
        """Close, within `close_seconds`. Raises SettingError in another event loop."""
        self._home.check()
        self._home.leave()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_client(consumer, self._config.close_seconds)

    # -- the topic -----------------------------------------------------------------------------

    async def _check_topic(self) -> None:
        """Refuse a topic that does not exist, has not exactly one partition, or is compacted."""
        admin = make_admin(self._kafka, self._role, request_timeout_ms=self._request_ms())
        async with started(admin, self._config.close_seconds):
            topic = await describe_topic(admin, self._kafka, self._config.topic)
        if refusal := topic_refusal(topic.name, topic.partitions, topic.settings):
            raise refusal
        if self._config.partition >= topic.partitions:
            raise TopicError("partition", self._config.partition, "partition 0, the only one")

    # -- the consumer --------------------------------------------------------------------------

    async def _start_consumer(self) -> None:
        config = self._config
        self._consumer = consumer = make_consumer(
            self._kafka,
            self._role,
            check_crcs=False,
            fetch_max_bytes=config.fetch_bytes,
            max_partition_fetch_bytes=config.fetch_bytes,
            request_timeout_ms=self._request_ms(),
        )
        await start_client(consumer)
        consumer.assign([self._at])
        await self._seek_to_live_end(consumer)

    async def _seek_to_live_end(self, consumer: AIOKafkaConsumer) -> None:
        consumer.seek(self._at, await self._live_end(consumer, self._config.request_seconds))

    async def _live_end(self, consumer: AIOKafkaConsumer, seconds: float) -> int:
        """Return the offset after the last record. Raises RetryError."""
        try:
            async with asyncio.timeout(seconds):
                ends = await consumer.end_offsets([self._at])
        except DRIVER_ERRORS as error:
            raise self._unanswered(error) from error
        return int(ends[self._at])

    def _running(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise SettingError("frame source", "not started", "start() first")
        return self._consumer

    def _request_ms(self) -> int:
        return int(self._config.request_seconds * 1000)

    def _unanswered(self, error: Exception) -> RetryError:
        # The client waits for a topic that was deleted as it does for a broker.
        known = self._running().partitions_for_topic(self._at.topic)
        if isinstance(error, TimeoutError) and not known:
            return RetryError(f"topic {self._at.topic} is not there, or hidden from this login")
        return RetryError(reason_of(reading_error(error, self._kafka, self._doing)))
