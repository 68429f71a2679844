"""The records of one partition, up to the end that was found at the start, page by page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from chain_verifier.bounds import Bounds
from chain_verifier.config import CONNECT_TIMEOUT_S
from orderchain.clients.kafka import (
    DRIVER_ERRORS,
    AIOKafkaConsumer,
    TopicPartition,
    close_client,
    connecting,
    make_consumer,
    start_client,
)
from orderchain.errors import OrderchainError, SourceBroken, TopicError
from orderchain.reasons import reason_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from orderchain.clients.kafka_config import KafkaConfig

    Records = list[tuple[int, bytes | None]]

_PAGE_RECORDS: Final = 32
"""Records held at a time: each may hold a frame of a thousand rows."""

_FETCH_BYTES: Final = 4 * 2**20
"""Of a broker at once; as much again waits while a page is looked at."""

_SILENCE_S: Final = 30.0
"""How long nothing may come before the broker counts as gone: records up to the end are there."""

_CLOSE_S: Final = 5.0


class TopicReader:
    """One partition, read from its beginning as often as wanted. `close` ends the connection.

    Raises ConnectError or RetryError where no broker answers as it should, TopicError where the
    partition is not there.
    """

    def __init__(self, name: str, kafka: KafkaConfig, topic: str, partition: int) -> None:
        self._name = name
        self._kafka = kafka
        self._at = TopicPartition(topic, partition)
        self._consumer: AIOKafkaConsumer | None = None
        self._runner = asyncio.Runner()
        try:
            self.bounds: Bounds = self._runner.run(self._open())
        except BaseException:
            self.close()
            raise

    async def _open(self) -> Bounds:
        try:
            async with connecting(
                self._kafka, CONNECT_TIMEOUT_S, doing=f"read topic {self._at.topic}"
            ):
                self._consumer = consumer = make_consumer(
                    self._kafka,
                    "verifier",
                    # What retention removes while it is read must not pass for never published.
                    auto_offset_reset="none",
                    # The checksum that counts is in the frame.
                    check_crcs=False,
                    fetch_max_bytes=_FETCH_BYTES,
                    max_partition_fetch_bytes=_FETCH_BYTES,
                    request_timeout_ms=CONNECT_TIMEOUT_S * 1000,
                )
                await start_client(consumer)
                # Of all topics: to ask for one that is missing could create it.
                if self._at.topic not in await consumer.topics():
                    raise self._missing()
                consumer.assign([self._at])
                first = await consumer.beginning_offsets([self._at])
                end = await consumer.end_offsets([self._at])
        except TopicError:
            raise
        except OrderchainError as error:
            if self._is_known_to_lack_partition():
                raise self._missing() from error
            raise
        return Bounds(first=first[self._at], end=end[self._at])

    def _is_known_to_lack_partition(self) -> bool:
        """aiokafka goes on asking for a partition that is not there."""
        consumer = self._consumer
        known = None if consumer is None else consumer.partitions_for_topic(self._at.topic)
        return known is not None and self._at.partition not in known

    def _missing(self) -> TopicError:
        found = f"{self._at.topic}, partition {self._at.partition}"
        return TopicError("topic", found, "a topic that exists")

    def pages(self) -> Iterator[Records]:
        """Yield offsets and values from the beginning. Raises SourceBroken."""
        if self._consumer is None or self.bounds.first >= self.bounds.end:
            return
        self._consumer.seek(self._at, self.bounds.first)
        position = self.bounds.first
        while position < self.bounds.end:
            page, position = self._run(self._next(self._consumer, position))
            yield [record for record in page if record[0] < self.bounds.end]

    async def _next(self, consumer: AIOKafkaConsumer, position: int) -> tuple[Records, int]:
        """Return the next records, and where the reading stands behind them."""
        async with asyncio.timeout(_SILENCE_S):
            while True:
                found = await consumer.getmany(
                    self._at, timeout_ms=1_000, max_records=_PAGE_RECORDS
                )
                at = await consumer.position(self._at)
                records = [(record.offset, record.value) for record in found.get(self._at, ())]
                # Offsets without a record (marks of a transaction) move the position too.
                if records or at > position:
                    return records, at

    def _run(self, work: Coroutine[object, object, tuple[Records, int]]) -> tuple[Records, int]:
        try:
            return self._runner.run(work)
        except DRIVER_ERRORS as error:
            is_silent = isinstance(error, TimeoutError)
            reason = f"no record came for {_SILENCE_S:.0f} s" if is_silent else reason_of(error)
            raise SourceBroken(self._name, reason) from error

    def close(self) -> None:
        """Close the connection; never raises, and waits for 5 s at the most."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._runner.run(close_client(consumer, _CLOSE_S))
        self._runner.close()
