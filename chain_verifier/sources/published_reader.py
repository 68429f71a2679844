"""One partition of a topic, read record by record from its beginning, in plain Python."""

from __future__ import annotations

import asyncio
import math
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from chain_kernel.clients.kafka import (
    AIOKafkaConsumer,
    TopicPartition,
    close_client,
    make_consumer,
    start_client,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, connecting, lasting_refusal
from chain_kernel.errors import OrderchainError, RetryError, SourceBroken, TopicError
from chain_kernel.text import reason_of
from chain_verifier.checks.published import Bounds
from chain_verifier.config import CONNECT_SECONDS
from chain_verifier.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from chain_verifier.config import TopicSource


_PAGE_RECORDS: Final = 32
"""Records held at a time: each may hold a frame of a thousand rows."""

_FETCH_BYTES: Final = 4 * 2**20
"""Bytes that a broker sends at once; the same amount waits while a page is looked at."""

_SILENCE_S: Final = 30.0
"""Seconds without a record before the broker counts as gone: records up to the end exist."""

_CLOSE_S: Final = 5.0

_TRIES: Final = 6
"""Number of times that a broker that accepts connections is asked, if it is late: a minute in
all with the default `connect_seconds`. One that is not there is asked once."""


class PublishedRecord(NamedTuple):
    """One record of a topic."""

    offset: int
    value: bytes | None
    time_ms: int
    """When it was sent, or stored if the topic is set to that; milliseconds since 1970."""


class PublishedReader:
    """One partition, read from its beginning as often as needed. `close` ends the connection.

    Raises ConnectError or RetryError if no broker answers as it should (a slow one is asked several
    times), TopicError if the partition
    does not exist, or its records cannot be decoded here.
    """

    def __init__(self, source: TopicSource, topic: str, partition: int) -> None:
        self._name = source.name
        self._kafka = KafkaConfig.of(source.kafka)
        self._connect_seconds = source.connect_seconds
        self._at = TopicPartition(topic, partition)
        self._consumer: AIOKafkaConsumer | None = None
        self._runner = Runner()
        try:
            self.bounds: Bounds = self._runner.run(self._open_patiently())
        except BaseException:
            self.close()
            raise

    async def _open_patiently(self) -> Bounds:
        for _ in range(_TRIES - 1):
            try:
                return await self._open()
            except OrderchainError as error:
                # The cause of a ConnectError is the wait that was cut off, or why it was refused.
                if not isinstance(error, RetryError) and not isinstance(
                    error.__cause__, TimeoutError
                ):
                    raise
            await self._end()
            await asyncio.sleep(min(1, self._connect_seconds))
        return await self._open()

    async def _open(self) -> Bounds:
        seconds = self._connect_seconds
        try:
            async with connecting(self._kafka, seconds, doing=f"read topic {self._at.topic}"):
                self._consumer = consumer = make_consumer(
                    self._kafka,
                    "verifier",
                    # What retention removes during the read must not look like never published.
                    auto_offset_reset="none",
                    fetch_max_bytes=_FETCH_BYTES,
                    max_partition_fetch_bytes=_FETCH_BYTES,
                    # A shorter one would end a fetch that waits for records.
                    request_timeout_ms=math.ceil(1_000 * max(seconds, CONNECT_SECONDS)),
                )
                await start_client(consumer)
                if self._at.topic not in await consumer.topics():
                    raise self._missing()
                consumer.assign([self._at])
                first = await consumer.beginning_offsets([self._at])
                end = await consumer.end_offsets([self._at])
        except TopicError:
            raise
        except OrderchainError as error:
            # aiokafka would request a partition that is known not to exist forever.
            consumer = self._consumer
            known = None if consumer is None else consumer.partitions_for_topic(self._at.topic)
            if known is not None and self._at.partition not in known:
                raise self._missing() from error
            raise
        return Bounds(first=first[self._at], end=end[self._at])

    def _missing(self) -> TopicError:
        found = f"{self._at.topic}, partition {self._at.partition}"
        return TopicError("topic", found, "a topic that exists")

    def pages(self, within: Bounds | None = None) -> Iterator[list[PublishedRecord]]:
        """Yield the records of the partition, or of the offsets `within` that were found before.

        Raises SourceBroken, also where retention has removed some of those since.
        """
        wanted = within or self.bounds
        first, end = wanted.first, wanted.end
        if self.bounds.first > first:
            raise SourceBroken(self._name, "retention removed records during the read")
        if self._consumer is None or first >= end:
            return
        self._consumer.seek(self._at, first)
        position = first
        while position < end:
            page, position = self._run(self._next(self._consumer, position))
            yield [record for record in page if record.offset < end]

    async def _next(
        self, consumer: AIOKafkaConsumer, position: int
    ) -> tuple[list[PublishedRecord], int]:
        """Return the next records, and the position after them."""
        async with asyncio.timeout(_SILENCE_S):
            while True:
                found = await consumer.getmany(
                    self._at, timeout_ms=1_000, max_records=_PAGE_RECORDS
                )
                at = await consumer.position(self._at)
                records = [
                    PublishedRecord(record.offset, record.value, record.timestamp)
                    for record in found.get(self._at, ())
                ]
                # Offsets without a record (marks of a transaction) move the position too.
                if records or at > position:
                    return records, at

    def _run(
        self, work: Coroutine[object, object, tuple[list[PublishedRecord], int]]
    ) -> tuple[list[PublishedRecord], int]:
        try:
            return self._runner.run(work)
        except DRIVER_ERRORS as error:
            if refusal := lasting_refusal(error, self._kafka, f"read topic {self._at.topic}"):
                raise refusal from error
            is_silent = isinstance(error, TimeoutError)
            reason = f"no record came for {_SILENCE_S:.0f} s" if is_silent else reason_of(error)
            raise SourceBroken(self._name, reason) from error

    def close(self) -> None:
        """Close the connection; never raises, and waits for at most 5 s."""
        if self._consumer is not None:
            self._runner.run(self._end())
        self._runner.close()

    async def _end(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_client(consumer, _CLOSE_S)


def bounds_of(source: TopicSource, topic: str, partition: int) -> Bounds:
    """Return the bounds of a partition. Raises as `PublishedReader`."""
    with closing(PublishedReader(source, topic, partition)) as reader:
        return reader.bounds
