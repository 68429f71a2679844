"""Consumers that the intakes of many chains share: most of their topics are quiet."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from chain_kernel.clients.kafka import (
    AIOKafkaAdminClient,
    TopicPartition,
    close_client,
    make_admin,
    start_client,
    started,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, connecting, reading_error
from chain_kernel.clients.topics import TopicDescription, describe_topics
from chain_kernel.errors import OrderchainError, RetryError
from chain_kernel.text import reason_of
from sequencer.intake.reader import (
    CLOSE_SECONDS,
    PROBE_EVERY_SECONDS,
    orders_consumer,
    refusal_of,
)
from sequencer.stores.together import Together

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from chain_kernel.ports import SourceRecord
    from sequencer.config import TopicIntakeConfig

_ROLE: Final = "intake"

_PARTITIONS_MAX: Final = 16
"""Partitions that share a consumer. Each answer has an entry for every one of them, so more make
each order more expensive; fewer make more requests: 1,000 chains at 200 orders/s were later with
32."""

_FETCH_MS: Final = 500
"""Time that the broker keeps a request for records that are not there yet. Another reader that
joins or leaves waits as long."""

_RECORD_BYTES: Final = 100
"""Bytes of a record beside its key and value."""

_OFFSETS_SHARE: Final = 0.25
"""The share of `connect_seconds` in which brokers say the offsets of topics."""

_Bounds = dict[TopicPartition, tuple[int, int]]


class Share:
    """The part of a joint consumer that one reader has: the methods of a consumer of its own."""

    def __init__(self, joint: _Joint, topic: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._joint = joint
        self._topic = topic
        self._read = dict(offsets)
        self._records: dict[TopicPartition, deque[SourceRecord]] = {at: deque() for at in offsets}
        self._bytes = 0
        self._is_known = False
        self._unknown_until = asyncio.get_running_loop().time() + joint.request_seconds
        self._news = asyncio.Event()
        self.error: Exception | None = None
        # Invariant: every record before a place was put here, none after it was.
        self.places = dict(offsets)

    @property
    def is_full(self) -> bool:
        """True if no more should be read for now."""
        return self._bytes >= self._joint.fetch_bytes

    def put(self, at: TopicPartition, records: Collection[SourceRecord], place: int) -> None:
        """Add the next records of a partition, which go up to `place`."""
        self._records[at].extend(records)
        self._bytes += sum(map(_size, records))
        self.places[at] = place
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Let the reader meet `error` after the records that it has."""
        self.error = self.error or error
        self._news.set()

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions that the brokers name; those it has until they are asked."""
        found: set[int] | None = self._joint.partitions_for_topic(topic)
        if found is None and not self._is_known:
            is_early = asyncio.get_running_loop().time() < self._unknown_until
            return {at.partition for at in self.places} if is_early else None
        self._is_known = True
        return found

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[SourceRecord]]:
        """Return the next records, as a consumer does."""
        if timeout_ms and self.error is None and not any(self._records.values()):
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1_000):
                    await self._news.wait()
        if self.error is not None and not any(self._records.values()):
            raise self.error
        return self._taken(partitions or tuple(self._records), max_records)

    def _taken(
        self, partitions: Collection[TopicPartition], max_records: int
    ) -> dict[TopicPartition, list[SourceRecord]]:
        found: dict[TopicPartition, list[SourceRecord]] = {}
        was_full = self.is_full
        for at in partitions:
            waiting = self._records[at]
            if waiting and max_records:
                found[at] = [waiting.popleft() for _ in range(min(max_records, len(waiting)))]
                max_records -= len(found[at])
                self._bytes -= sum(map(_size, found[at]))
                self._read[at] = found[at][-1].offset + 1
        if was_full and not self.is_full:
            self._joint.resume(self)
        return found

    async def position(self, at: TopicPartition) -> int:
        """Return the offset of the next record to take."""
        place: int = self._read[at] if self._records[at] else self.places[at]
        return place

    def leave(self) -> None:
        """Read no more."""
        self._joint.remove(self)


class JointConsumers:
    """Consumers for the topics of many chains; each serves some of them.

    What befalls one topic is met by its reader alone. A broker that is silent is met by those whose
    partitions it leads.
    """

    def __init__(self, config: TopicIntakeConfig) -> None:
        """Serve intakes that have brokers, bounds and deadlines of `config`."""
        self._config = config
        self._kafka = KafkaConfig.of(config.kafka)
        self._looks = Together(self._look)
        self._numbers = count()
        self._joints: list[_Joint] = []

    def serves(self, config: TopicIntakeConfig) -> bool:
        """Return whether an intake with `config` may use them."""
        return _shared_settings(config) == _shared_settings(self._config)

    async def bounds(self, topic: str) -> _Bounds:
        """Return first offset and end of each partition; one client asks for all at a time.

        Raises as `RecordSource.open`.
        """
        found = await self._looks.ask(next(self._numbers), topic)
        if isinstance(found, OrderchainError):
            raise found
        if found is None:
            raise RetryError(f"the broker does not describe topic {topic}")
        return found

    def join(self, topic: str, offsets: Mapping[TopicPartition, int]) -> Share:
        """Return a share that reads `topic` from `offsets` on."""
        self._joints = [joint for joint in self._joints if not joint.is_closed]
        joint = next((joint for joint in self._joints if joint.has_room(offsets)), None)
        if joint is None:
            joint = _Joint(self._config)
            self._joints.append(joint)
        return joint.add(topic, offsets)

    async def close(self) -> None:
        """Close them, once all readers are closed; never raises."""
        await self._looks.close()
        await asyncio.gather(*(joint.close() for joint in self._joints))

    async def _look(self, topics: Mapping[int, str]) -> Mapping[int, _Bounds | OrderchainError]:
        """Find the bounds of topics. What one of them is refused for is its own answer."""
        names = sorted(set(topics.values()))
        config, kafka = self._config, self._kafka
        request_ms = int(config.request_seconds * 1_000)
        admin = make_admin(kafka, _ROLE, request_timeout_ms=request_ms)
        async with (
            connecting(kafka, config.connect_seconds, doing=_doing(names[0])),
            started(admin, CLOSE_SECONDS),
            # As those that will read: of a transaction that is open the end is not known yet.
            started(orders_consumer(config, kafka, _ROLE, _FETCH_MS), CLOSE_SECONDS) as consumer,
        ):
            topics_found = await _described(names, admin, kafka)
            seconds = config.connect_seconds * _OFFSETS_SHARE
            found = await _bounds_of(topics_found, kafka, consumer, seconds)
        return {number: found[name] for number, name in topics.items()}


class _Joint:
    """One consumer, with the shares of its readers; it ends with the last of them."""

    def __init__(self, config: TopicIntakeConfig) -> None:
        self.fetch_bytes = config.fetch_bytes
        self.request_seconds = config.request_seconds
        self._is_over = False
        self._kafka = KafkaConfig.of(config.kafka)
        self._consumer: Any = None
        self._shares: list[Share] = []
        self._reading = asyncio.create_task(self._run(config), name="orderchain joint intake")

    @property
    def is_closed(self) -> bool:
        """True if nothing of it is left."""
        return self._reading.done()

    def has_room(self, partitions: Collection[TopicPartition]) -> bool:
        """Return whether it may read them, too. A consumer has one place in each partition."""
        taken = [at for share in self._shares for at in share.places]
        is_small = len(taken) + len(partitions) <= _PARTITIONS_MAX
        return not self._is_over and is_small and set(partitions).isdisjoint(taken)

    def add(self, topic: str, offsets: Mapping[TopicPartition, int]) -> Share:
        """Read for one more reader."""
        share = Share(self, topic, offsets)
        self._shares.append(share)
        self._assign()
        return share

    def remove(self, share: Share) -> None:
        """Read for a reader no longer. Repeats do no harm."""
        if share in self._shares:
            self._shares.remove(share)
            self._assign()

    def resume(self, share: Share) -> None:
        """Read for a share that has room again."""
        if self._consumer is not None and share in self._shares and share.error is None:
            self._consumer.resume(*share.places)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic, None while they are not known."""
        found: set[int] | None = self._consumer and self._consumer.partitions_for_topic(topic)
        return found

    async def close(self) -> None:
        """End it; never raises."""
        if not self._is_over:
            self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def _sound(self) -> Iterator[tuple[TopicPartition, Share]]:
        for share in self._shares:
            if share.error is None:
                for at in share.places:
                    yield at, share

    def _assign(self) -> None:
        """Read on from the places of all; what was read ahead is read again."""
        sound = dict(self._sound())
        if self._is_over:
            return
        if not sound:
            self._is_over = True  # an empty list would make the client ask for every topic there is
            self._reading.cancel()
        elif self._consumer is not None:
            self._consumer.assign(list(sound))
            for at, share in sound.items():
                self._consumer.seek(at, share.places[at])
                if share.is_full:
                    self._consumer.pause(at)

    async def _run(self, config: TopicIntakeConfig) -> None:
        error: Exception = RetryError("the consumer was closed")
        probing: asyncio.Task[None] | None = None
        consumer: Any = None
        try:
            consumer = orders_consumer(config, self._kafka, _ROLE, _FETCH_MS)
            async with connecting(self._kafka, config.connect_seconds):
                await start_client(consumer)
            self._consumer = consumer
            self._assign()
            probing = asyncio.create_task(self._probe_often(), name="orderchain intake probe")
            probing.add_done_callback(lambda _: self._reading.cancel())  # none reads unwatched
            while True:
                await self._hand_out()
        except Exception as raised:  # noqa: BLE001 - each reader begins again, with another one
            error = raised
        finally:
            self._is_over = True
            for share in self._shares:
                share.fail(RetryError(reason_of(error)))
            if probing is not None:
                probing.cancel()
            if consumer is not None:
                await close_client(consumer, CLOSE_SECONDS)

    async def _hand_out(self) -> None:
        try:
            found = await self._consumer.getmany(timeout_ms=_FETCH_MS)
        except DRIVER_ERRORS as error:
            self._fail(error, getattr(error, "at", None))
            return
        for at, share in self._sound():
            # Ends of transactions are records, too: a place may move without one to hand out, and
            # one that stayed behind them would be before the log once they are deleted.
            place = await self._consumer.position(at)
            if place != share.places[at]:
                share.put(at, found.get(at, ()), place)
        full = [at for at, share in self._sound() if share.is_full]
        self._consumer.pause(*full)

    def _fail(self, error: Exception, at: TopicPartition | None) -> None:
        """Let the reader of a partition meet `error`; all where its partition is not known."""
        for share in self._shares:
            if at is None or at in share.places:
                share.fail(RetryError(reason_of(error)) if at is None else error)
        self._assign()

    async def _probe_often(self) -> None:
        """Ask the brokers whether they are there, with their logs not shorter."""
        while True:
            await asyncio.sleep(PROBE_EVERY_SECONDS)
            places = {at: share.places[at] for at, share in self._sound()}
            for at, end in (await self._ends(list(places))).items():
                if isinstance(end, Exception):
                    self._fail(end, at)
                elif end < places[at]:
                    ends = f"{at.topic}: partition {at.partition} ends at {end} now"
                    self._fail(RetryError(ends), at)

    async def _ends(self, places: list[TopicPartition]) -> dict[TopicPartition, int | Exception]:
        """Return the end of each partition, or why it is not known."""

        async def ends(*some: TopicPartition) -> dict[TopicPartition, int | Exception]:
            try:
                async with asyncio.timeout(self.request_seconds):
                    found: dict[TopicPartition, int | Exception]
                    found = await self._consumer.end_offsets(list(some))
                    return found
            except DRIVER_ERRORS as error:
                return dict.fromkeys(some, error)

        found = await ends(*places)
        if not any(isinstance(end, Exception) for end in found.values()):
            return found
        parts = await asyncio.gather(*map(ends, places))  # the broker of one may be away
        return {at: end for part in parts for at, end in part.items()}


async def _described(
    names: Sequence[str], admin: AIOKafkaAdminClient, kafka: KafkaConfig
) -> dict[str, TopicDescription | OrderchainError]:
    """Return topics by name, or why one of them cannot be described."""
    failure: OrderchainError
    try:
        return dict(await describe_topics(admin, kafka, names))
    except OrderchainError as error:
        failure = error
    except DRIVER_ERRORS as error:
        failure = reading_error(error, kafka, _doing(names[0]))
    if len(names) == 1:
        return {names[0]: failure}
    found: dict[str, TopicDescription | OrderchainError] = {}
    for name in names:
        found |= await _described([name], admin, kafka)
    return found


async def _bounds_of(
    topics: Mapping[str, TopicDescription | OrderchainError],
    kafka: KafkaConfig,
    consumer: Any,  # noqa: ANN401
    seconds: float,
) -> dict[str, _Bounds | OrderchainError]:
    """Return first offset and end of the partitions of each topic, or why it is refused.

    `seconds` is the time for all together, and then for each: the broker of one may be away.
    """
    found: dict[str, _Bounds | OrderchainError] = {}
    parts: dict[str, list[TopicPartition]] = {}
    for name, topic in topics.items():
        refusal = topic if isinstance(topic, OrderchainError) else refusal_of(topic)
        if refusal is not None:
            found[name] = refusal
        elif isinstance(topic, TopicDescription):
            parts[name] = [TopicPartition(name, number) for number in range(topic.partitions)]
    if every := [at for some in parts.values() for at in some]:
        consumer.assign(every)
        bounds = await _offsets_of(every, kafka, consumer, seconds)
        if isinstance(bounds, OrderchainError):
            asked = (_offsets_of(some, kafka, consumer, seconds) for some in parts.values())
            found |= zip(parts, await asyncio.gather(*asked), strict=True)
        else:
            found |= {name: {at: bounds[at] for at in some} for name, some in parts.items()}
    return found


async def _offsets_of(
    parts: Sequence[TopicPartition],
    kafka: KafkaConfig,
    consumer: Any,  # noqa: ANN401
    seconds: float,
) -> _Bounds | OrderchainError:
    try:
        async with asyncio.timeout(seconds):
            first = await consumer.beginning_offsets(list(parts))
            end = await consumer.end_offsets(list(parts))
    except DRIVER_ERRORS as error:
        return reading_error(error, kafka, _doing(parts[0].topic))
    return {at: (first[at], end[at]) for at in parts}


def _doing(topic: str) -> str:
    return f"read topic {topic}"


def _size(record: SourceRecord) -> int:
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")


def _shared_settings(config: TopicIntakeConfig) -> tuple[object, ...]:
    kafka = KafkaConfig.of(config.kafka)
    return kafka, config.fetch_bytes, config.request_seconds, config.connect_seconds
