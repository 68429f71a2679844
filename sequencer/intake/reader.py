"""Reads the records of all partitions of a topic of orders, without a group; skips nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from chain_kernel.clients.kafka import (
    AIOKafkaConsumer,
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
from chain_kernel.clients.topics import TopicDescription, describe_topic, describe_topics
from chain_kernel.errors import ConnectError, RetryError, TopicError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chain_kernel.ports import SourceRecord
    from sequencer.config import TopicIntakeConfig
    from sequencer.intake.joint import JointConsumers, Share


ISOLATION_LEVEL: Final = "read_committed"
"""Records of an aborted transaction are not orders."""

PROBE_EVERY_SECONDS: Final = 5.0
"""Time between two requests to a silent broker: the client never reports that it is away."""

_METADATA_AGE_MS: Final = 10_000
"""The longest age of the client's list of partitions: an added partition is read from then on."""

_MISSING_SECONDS: Final = 5.0
_MISSING_PAUSE_SECONDS: Final = 0.25
"""Time, and the pauses within it, in which topics are asked for again that are missing beside
others."""

_FETCH_MS: Final = 2_000
"""Time that the broker keeps a request for records that are not there yet: it answers at the first
one. A thousand quiet intakes ask 500 times a second; what else they ask waits no longer."""

CLOSE_SECONDS: Final = 2.0
"""With the broker away, the client's own stop waits forever."""


async def check_intake_topic(config: TopicIntakeConfig) -> None:
    """Raise ConnectError, TopicError or RetryError if an intake from the topic would be refused.

    Call it before the take-over of the chain: a wrong setting should not end a leader.
    """
    for error in (await refused_topics([config])).values():
        raise error


async def refused_topics(configs: Sequence[TopicIntakeConfig]) -> dict[str, TopicError]:
    """Return by name which topics an intake would refuse, and why, with one client for all.

    `configs` are of the same brokers. A broker that has just started, or a topic that was just
    made, is not known at once: a topic that is missing beside others is asked for again for a
    while, and is refused if it is not found by then.

    Raises:
        ConnectError: the settings cannot lead to a connection.
        RetryError: the broker does not answer.
    """
    names = [config.topic for config in configs]
    found = await _described(configs[0], names)
    loop = asyncio.get_running_loop()
    end = loop.time() + _MISSING_SECONDS
    while loop.time() < end:
        missing = [name for name in names if not found[name].is_there]
        if not missing or len(missing) == len(names):
            break
        await asyncio.sleep(_MISSING_PAUSE_SECONDS)
        # The broker has answered before: what it fails to say now takes nothing from that.
        with suppress(ConnectError, RetryError):
            found |= await _described(configs[0], missing)
    return {name: error for name in names if (error := refusal_of(found[name])) is not None}


async def _described(
    config: TopicIntakeConfig, names: Sequence[str]
) -> dict[str, TopicDescription]:
    """Return topics by name, within `connect_seconds`. Raises ConnectError and RetryError."""
    kafka = KafkaConfig.of(config.kafka)
    request_ms = int(config.request_seconds * 1_000)
    async with connecting(kafka, config.connect_seconds, doing=f"read topic {names[0]}"):
        admin = make_admin(kafka, f"intake-{names[0]}", request_timeout_ms=request_ms)
        async with started(admin, CLOSE_SECONDS):
            return await describe_topics(admin, kafka, names)


def refusal_of(topic: TopicDescription) -> TopicError | None:
    """Return a TopicError if orders might vanish unread."""
    if not topic.is_there:
        return TopicError("topic", topic.name, "a topic that exists")
    policy = topic.settings.get("cleanup.policy", "")
    if "compact" in policy:
        return TopicError(f"cleanup.policy of topic {topic.name}", policy, "delete")
    return None


def orders_consumer(
    config: TopicIntakeConfig, kafka: KafkaConfig, role: str, wait_ms: int
) -> AIOKafkaConsumer:
    """Return a consumer, not started; a broker keeps its requests for up to `wait_ms`."""
    return make_consumer(
        kafka,
        role,
        isolation_level=ISOLATION_LEVEL,
        max_partition_fetch_bytes=config.fetch_bytes,
        fetch_max_bytes=max(config.fetch_bytes, 8 * 2**20),
        metadata_max_age_ms=_METADATA_AGE_MS,
        fetch_max_wait_ms=min(wait_ms, int(config.request_seconds * 500)),
        request_timeout_ms=int(config.request_seconds * 1_000),
    )


class TopicReader:
    """Implements `chain_kernel.ports.RecordSource` over aiokafka.

    After any error of the client all partitions are read again from the caller's places: when one
    partition fails, the client has already moved past records of others that it never returned.
    """

    def __init__(self, config: TopicIntakeConfig, joint: JointConsumers | None = None) -> None:
        """Read with a share of `joint`, if it is given; else with a consumer of its own."""
        self._config = config
        self._joint = joint if joint is not None and joint.serves(config) else None
        self._kafka = KafkaConfig.of(config.kafka)
        self._role = f"intake-{config.topic}"
        self._doing = f"read topic {config.topic}"
        self._consumer: AIOKafkaConsumer | Share | None = None
        self._partitions: list[TopicPartition] = []
        self._offsets: dict[TopicPartition, int] = {}
        self._next_turn = 0
        self._next_probe = 0.0

    async def open(self) -> dict[int, tuple[int, int]]:
        """Connect and check the topic."""
        await self.close()
        if self._joint is not None:
            bounds = await self._joint.bounds(self._config.topic)
            self._partitions = list(bounds)
            return {at.partition: bounds[at] for at in self._partitions}
        try:
            async with connecting(self._kafka, self._config.connect_seconds, doing=self._doing):
                count = await self._check_topic()
                self._partitions = [TopicPartition(self._config.topic, n) for n in range(count)]
                self._next_probe = 0.0
                self._consumer = consumer = orders_consumer(
                    self._config, self._kafka, self._role, _FETCH_MS
                )
                await start_client(consumer)
                first = await consumer.beginning_offsets(self._partitions)
                end = await consumer.end_offsets(self._partitions)
        except BaseException:
            await self.close()
            raise
        return {at.partition: (first[at], end[at]) for at in self._partitions}

    async def offsets_at(self, time_ms: int) -> dict[int, int]:
        """Return offsets by a time."""
        # With a client for this one question: a joint consumer is another intake's, too.
        asking = orders_consumer(self._config, self._kafka, self._role, _FETCH_MS)
        async with (
            connecting(self._kafka, self._config.connect_seconds, doing=self._doing),
            started(asking, CLOSE_SECONDS),
        ):
            found = await asking.offsets_for_times(dict.fromkeys(self._partitions, time_ms))
            ends = await asking.end_offsets(self._partitions)
        return {
            at.partition: ends[at] if found.get(at) is None else found[at].offset
            for at in self._partitions
        }

    async def seek(self, offsets: Mapping[int, int]) -> None:
        """Go to `offsets`."""
        self._offsets = {at: offsets[at.partition] for at in self._partitions}
        if self._joint is not None:
            self._consumer = self._joint.join(self._config.topic, self._offsets)
            return
        consumer = self._running()
        # Not before: the client would look for the offset of a group, and fail.
        consumer.assign(self._partitions)
        for at, offset in self._offsets.items():
            consumer.seek(at, offset)

    async def records(
        self, at_most: int, timeout_seconds: float
    ) -> dict[int, tuple[Sequence[SourceRecord], int]]:
        """Return the next records."""
        consumer = self._running()
        # If the topic was deleted or grew, the caller decides where to continue.
        found = consumer.partitions_for_topic(self._config.topic)
        if found != {at.partition for at in self._partitions}:
            raise RetryError(f"{self._config.topic}: its partitions are {found} now")
        try:
            drained = await self._drain(consumer, at_most, timeout_seconds)
            moved = await self._moved(consumer, drained)
            if not moved:
                await self._probe(consumer)
        except DRIVER_ERRORS as error:
            raise reading_error(error, self._kafka, self._doing) from error
        return moved

    async def close(self) -> None:
        """Close the client."""
        consumer, self._consumer = self._consumer, None
        if self._joint is not None and consumer is not None:
            consumer.leave()
        elif consumer is not None:
            await close_client(consumer, CLOSE_SECONDS)

    async def _drain(
        self, consumer: AIOKafkaConsumer, at_most: int, timeout_seconds: float
    ) -> dict[TopicPartition, list[SourceRecord]]:
        """Return what is there: an equal share per partition, then whatever there is room for.

        The client itself would empty one partition's buffer before it reads the next one.
        """
        share = max(at_most // len(self._partitions), 1)
        drained: dict[TopicPartition, list[SourceRecord]] = {}
        room = at_most
        # Another partition is the first one each time.
        turn = self._next_turn % len(self._partitions)
        self._next_turn = turn + 1
        try:
            for at in self._partitions[turn:] + self._partitions[:turn]:
                if room:
                    room -= await self._take(consumer, drained, min(share, room), 0, at)
            if room:
                wait_ms = 0 if drained else int(timeout_seconds * 1_000)
                await self._take(consumer, drained, room, wait_ms)
        except UnreadableRecord:
            if not drained:  # raised again by the next call: what is there comes first
                raise
        return drained

    @staticmethod
    async def _take(
        consumer: AIOKafkaConsumer,
        drained: dict[TopicPartition, list[SourceRecord]],
        at_most: int,
        wait_ms: int,
        *partitions: TopicPartition,
    ) -> int:
        """Add the next records of `partitions`, by default all, to `drained`; return how many."""
        found = await consumer.getmany(*partitions, timeout_ms=wait_ms, max_records=at_most)
        for at, records in found.items():
            drained.setdefault(at, []).extend(records)
        return sum(map(len, found.values()))

    async def _moved(
        self,
        consumer: AIOKafkaConsumer,
        drained: Mapping[TopicPartition, Sequence[SourceRecord]],
    ) -> dict[int, tuple[Sequence[SourceRecord], int]]:
        """Return records and next offset of the partitions that moved.

        The next offset may skip past the last record's: ends of transactions are records too.
        """
        moved: dict[int, tuple[Sequence[SourceRecord], int]] = {}
        async with asyncio.timeout(self._config.request_seconds):
            for at in self._partitions:
                offset = await consumer.position(at)
                if offset != self._offsets[at]:
                    self._offsets[at] = offset
                    moved[at.partition] = (drained.get(at, ()), offset)
        return moved

    async def _probe(self, consumer: AIOKafkaConsumer) -> None:
        """Ask a broker that is silent for a while whether it is there, with its log not shorter."""
        now = asyncio.get_running_loop().time()
        if now < self._next_probe or self._joint is not None:  # which probes for all
            return
        self._next_probe = now + PROBE_EVERY_SECONDS
        async with asyncio.timeout(self._config.request_seconds):
            ends = await consumer.end_offsets(self._partitions)
        for at, offset in self._offsets.items():
            if ends[at] < offset:
                raise RetryError(f"{at.topic}: partition {at.partition} ends at {ends[at]} now")

    async def _check_topic(self) -> int:
        """Return the number of partitions. Raises TopicError if orders might vanish unread."""
        request_ms = int(self._config.request_seconds * 1_000)
        admin = make_admin(self._kafka, self._role, request_timeout_ms=request_ms)
        async with started(admin, CLOSE_SECONDS):
            topic = await describe_topic(admin, self._kafka, self._config.topic)
        if refusal := refusal_of(topic):
            raise refusal
        return topic.partitions

    def _running(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise RetryError(f"{self._config.topic}: not open")
        return self._consumer
