"""A broker in memory, and a consumer's way to it: topics, partitions, groups, committed offsets."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from chain_kernel.clients.kafka import TopicPartition
from chain_kernel.errors import RetryError
from chain_kernel.testing.virtual_loop import alive, is_killed
from outbox.consumer.confirm_loop import RECORD_PARTITIONS_MAX, ConfirmSender
from outbox.consumer.in_hand import PartitionEnds, StartFrom, begin_offset, chosen_offset
from outbox.consumer.record_source import DestinationRecords
from outbox.records import encode_confirms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chain_kernel.clients.kafka import ConsumerRecord
    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.in_hand import ConsumeStart, Partition
    from outbox.records import Confirm, Progress
    from outbox.testing.faults import Faults

PARTITIONS: Final = 3
"""Partitions of each topic: enough for keys to overtake each other."""

IDLE_SECONDS: Final = 60.0
"""The most that a look at a broker that has nothing takes. Virtual, as all time here."""

TRIP_SECONDS_MAX: Final = 0.01


class BrokerRecord(Struct, frozen=True):
    """What consumers read of aiokafka's records."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


class MemoryBroker:
    """Keeps every record it was sent, in the order of each partition."""

    def __init__(self, faults: Faults) -> None:
        self.committed: dict[tuple[str, Partition], int] = {}
        """By group and partition: the offset at which the group continues."""
        self.faults = faults
        self._logs: dict[Partition, list[BrokerRecord]] = {}
        self._arrived: list[asyncio.Future[None]] = []

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        headers: Sequence[tuple[str, bytes]] = (),
        *,
        time_ms: int = 0,
    ) -> BrokerRecord:
        """Store a record, at one instant, where its key says; without a key, anywhere."""
        number = self.faults.random.randrange(PARTITIONS)
        if key is not None:
            number = zlib.crc32(key) % PARTITIONS
        log = self.log((topic, number))
        record = BrokerRecord(topic, number, len(log), time_ms, key, value, tuple(headers))
        log.append(record)
        self.wake()
        return record

    def wake(self) -> None:
        """Wake all that wait for an arrival."""
        arrived, self._arrived = self._arrived, []
        for waiter in arrived:
            if not waiter.done():
                waiter.set_result(None)

    def log(self, place: Partition) -> list[BrokerRecord]:
        """Return the records of a partition."""
        return self._logs.setdefault(place, [])

    def places(self, topics: Sequence[str]) -> Iterator[Partition]:
        """Yield the partitions of topics."""
        return ((topic, number) for topic in topics for number in range(PARTITIONS))

    def is_read(self, group: str, topics: Sequence[str]) -> bool:
        """Return whether a group has committed everything that is there."""
        return all(
            self.committed.get((group, place), 0) >= len(self.log(place))
            for place in self.places(topics)
        )

    async def arrival(self, seconds: float) -> None:
        """Return when the next record is stored, or after `seconds`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived.append(waiter)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await waiter

    async def question(self) -> None:
        """Spend the time of a question. Raises RetryError if it is not answered."""
        await asyncio.sleep(self.faults.random.uniform(0.0, TRIP_SECONDS_MAX))
        await alive()
        if self.faults.happens("broker_away"):
            raise RetryError("the broker did not answer")


class MemorySource(DestinationRecords):
    """See `outbox.consumer.record_source.DestinationRecords`: the only member of its group."""

    def __init__(
        self,
        config: ConsumerConfig,
        dropped: Callable[[frozenset[Partition]], None],
        broker: MemoryBroker,
    ) -> None:
        super().__init__(config, dropped)
        self._broker = broker
        self._group = config.name
        self._topics = config.topics
        self._next: dict[Partition, int] = {}

    async def start(self) -> None:
        """See `DestinationRecords.start`."""
        await asyncio.sleep(0)

    async def first_starts(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """See `DestinationRecords.first_starts`."""
        found: dict[str, list[int]] = {topic: [] for topic in topics}
        if self._config.start.position is StartFrom.FIRST:
            return found
        await self._broker.question()
        for place in self._broker.places(topics):
            log = self._broker.log(place)
            ends = PartitionEnds(0, len(log), _at_time(log, self._config.start))
            found[place[0]].append(chosen_offset(self._config.start, ends))
        return found

    async def records(self, timeout_seconds: float, most: int) -> list[ConsumerRecord]:
        """See `DestinationRecords.records`: some of what is there, of partitions in any order."""
        broker, random = self._broker, self._broker.faults.random
        await broker.question()
        if broker.faults.happens("moved"):
            self._move(random.choice(list(broker.places(self._topics))))
        for place in broker.places(self._topics):
            if place not in self._next:
                self._begin(place)
        ready = [place for place, at in self._next.items() if at < len(broker.log(place))]
        if not ready:
            await broker.arrival(max(timeout_seconds, IDLE_SECONDS))
            return []
        random.shuffle(ready)
        found: list[BrokerRecord] = []
        for place in ready:
            if len(found) < most and not broker.faults.happens("held_back"):
                found += self._read(place, random.randint(1, most - len(found)))
        return cast("list[ConsumerRecord]", found)

    async def commit(self) -> None:
        """See `DestinationRecords.commit`."""
        offsets = self.progress.to_commit()
        if offsets and not is_killed():
            await self._broker.question()
            for place, offset in offsets.items():
                self._broker.committed[self._group, place] = offset
            self.progress.committed(offsets)

    async def close(self) -> None:
        """There is nothing to close."""

    def _begin(self, place: Partition) -> None:
        log = self._broker.log(place)
        committed = self._broker.committed.get((self._group, place))
        first_start = self._first_start(TopicPartition(*place))
        begin = begin_offset(first_start, committed, PartitionEnds(0, len(log)))
        self._broker.committed.setdefault((self._group, place), begin)
        self._next[place] = begin
        self.progress.assign(place, begin)

    def _read(self, place: Partition, most: int) -> list[BrokerRecord]:
        at, held = self._next[place], self.progress.of(place)
        records = self._broker.log(place)[at : at + most]
        self._next[place] = at + len(records)
        return [record for record in records if held is not None and held.receive(record.offset)]

    def _move(self, place: Partition) -> None:
        """Lose a partition to another process, which does nothing and gives it back."""
        self._next.pop(place, None)
        self.progress.revoke([place])
        self._dropped(frozenset({place}))


class MemoryConfirms(ConfirmSender):
    """See `outbox.consumer.confirm_loop.ConfirmSender`."""

    def __init__(self, config: ConsumerConfig, broker: MemoryBroker) -> None:
        super().__init__(config)
        self._broker = broker
        self._consumer = config.name

    async def start(self) -> None:
        """See `ConfirmSender.start`."""
        await asyncio.sleep(0)

    async def _send(self, topic: str, confirms: list[Confirm], reported: list[Progress]) -> bool:
        if is_killed():
            return False
        try:
            await self._broker.question()
        except RetryError:
            return False
        value = encode_confirms(self._consumer, confirms, reported[:RECORD_PARTITIONS_MAX])
        self._broker.send(topic, self._consumer.encode(), value)
        if self._broker.faults.happens("confirm_unanswered"):
            return False
        self.sent += len(confirms)
        return True


def _at_time(log: Sequence[BrokerRecord], start: ConsumeStart) -> int | None:
    if start.time_ms is None:
        return None
    return next((record.offset for record in log if record.timestamp >= start.time_ms), None)
