"""Brokers in memory, and what the outbox uses of aiokafka's clients, at the end of a wire.

A request is done at one instant at the broker, at most once per try of the client, which tries
again where it got no answer: so a record is lost, comes twice, or late. A group is rebalanced when
members come, go, or are not heard of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from msgspec import Struct

from chain_kernel.clients.kafka import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicPartition,
    UnknownTopicOrPartitionError,
)
from chain_kernel.testing.virtual_loop import current_process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from random import Random

    from chain_kernel.testing.virtual_loop import Process


Content = tuple[bytes | None, bytes, tuple[tuple[str, bytes], ...]]
"""Key, value and headers."""

Ask = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Has the broker do something at one instant, and returns its answer. Raises Unanswered."""

BATCH_RECORDS_MAX: Final = 3
"""Records of one batch: so few that a send has several."""

SESSION_BEATS: Final = 12
"""A member that is not heard of for so many beats is out of its group."""


class SentRecord(Struct, frozen=True):
    """A record, with the fields of aiokafka's that consumers read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


class Unanswered(KafkaError):  # type: ignore[misc] # aiokafka is untyped
    """There is no answer. `may_be_done`: what was asked for may be done, or yet to be."""

    retriable = True

    def __init__(self, *, may_be_done: bool) -> None:
        super().__init__("the broker did not answer")
        self.may_be_done = may_be_done


class Share(NamedTuple):
    """The partitions of a member, since which rebalance."""

    generation: int
    places: list[TopicPartition]


class Group:
    """The members of a group, their partitions, and its committed offsets."""

    def __init__(self, broker: Broker) -> None:
        self.committed: dict[TopicPartition, int] = {}
        self.generation = 0
        self._broker = broker
        self.seen: dict[MemoryConsumer, float] = {}
        """The time at which each member was heard of."""
        self._joined: set[MemoryConsumer] = set()
        self._shares: dict[MemoryConsumer, list[TopicPartition]] = {}
        self._shared: list[TopicPartition] = []

    def beat(self, member: MemoryConsumer, joins: bool) -> Share | None:
        """Return what a member has to read; None while the group is being rebalanced."""
        now = asyncio.get_running_loop().time()
        self.seen[member] = now
        for other, at in list(self.seen.items()):
            if at < now - SESSION_BEATS * self._broker.beat_seconds:
                self.leave(other)
        if joins:
            self._joined.add(member)
        places = self._broker.places(member.subscribed)
        if self._shares.keys() == self.seen.keys() and self._shared == places:
            return Share(self.generation, self._shares[member])
        if self.seen.keys() <= self._joined:
            members = [each for each in self.seen if each in self._joined]
            self._shares = {each: places[at :: len(members)] for at, each in enumerate(members)}
            self._joined, self._shared, self.generation = set(), places, self.generation + 1
            return Share(self.generation, self._shares[member])
        return None

    def leave(self, member: MemoryConsumer) -> None:
        """Take a member out."""
        self.seen.pop(member, None)
        self._joined.discard(member)

    def commit(self, member: MemoryConsumer, offsets: Mapping[TopicPartition, int]) -> None:
        """Raise CommitFailedError for one that has missed a rebalance."""
        if member.generation != self.generation or member not in self.seen:
            raise CommitFailedError("the group has rebalanced")
        self.committed.update(offsets)


class Broker:
    """Topics by name, with the records of each partition, and groups by name."""

    beat_seconds = 0.25
    """Pause between two signs of life of a member."""
    look_seconds = 0.0
    """Least time of a look for records: idle consumers take fewer steps so."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.topics: dict[str, list[list[SentRecord]]] = {}
        self.groups: dict[str, Group] = {}
        self.grown = asyncio.Event()
        self.watch: Callable[[SentRecord], None] = lambda _: None
        """Called with each record that is stored."""

    def places(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return the partitions of topics, in their order."""
        return [
            TopicPartition(topic, number)
            for topic in sorted(topics)
            for number in range(len(self.topics.get(topic, ())))
        ]

    def group(self, name: str) -> Group:
        """Return a group, which is made by its first member."""
        return self.groups.setdefault(name, Group(self))

    def end(self, process: Process) -> None:
        """Take the members of a process that was killed out of their groups."""
        for group in self.groups.values():
            for member in [each for each in group.seen if each.process is process]:
                group.leave(member)

    def log(self, at: tuple[str, int]) -> list[SentRecord]:
        """Return the records of a partition. Raises UnknownTopicOrPartitionError."""
        if at[1] >= len(self.topics.get(at[0], ())):
            raise UnknownTopicOrPartitionError(at[0])
        return self.topics[at[0]][at[1]]

    def append(self, at: TopicPartition, contents: Iterable[Content]) -> int:
        """Store records; return the offset of the first one."""
        log = self.log(at)
        first = len(log)
        for key, value, headers in contents:
            log.append(SentRecord(at.topic, at.partition, len(log), key, value, headers))
            self.watch(log[-1])
        grown, self.grown = self.grown, asyncio.Event()
        grown.set()
        return first


async def asked_at_once(work: Callable[[], Any]) -> Any:  # noqa: ANN401 - what `work` returns
    """Return what the broker answers, over a way that loses nothing."""
    await asyncio.sleep(0)
    return work()


class MemoryClient:
    """The base of both kinds of client."""

    def __init__(self, broker: Broker, ask: Ask = asked_at_once) -> None:
        """`ask` is the way to the broker, which may be bad."""
        self.broker = broker
        self._ask = ask
        self.client = SimpleNamespace(
            _sync_task=None, _conns={}, add_topic=lambda _: None,
            force_metadata_update=self._is_answered,
            cluster=SimpleNamespace(
                _listeners=set(), unauthorized_topics=set(),
                partitions_for_topic=self.partitions_for_topic,
            ),
        )  # fmt: skip

    async def start(self) -> None:
        """See aiokafka."""
        await self._ask(lambda: None)

    async def stop(self) -> None:
        """Nothing is open."""

    async def _is_answered(self) -> bool:
        with suppress(Unanswered):
            await self._ask(lambda: None)
            return True
        return False

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """See aiokafka: None for a topic that is not there."""
        return set(range(len(self.broker.topics.get(topic, ())))) or None


class Listener(Protocol):
    """Hears of the partitions that a member gets and loses; see aiokafka."""

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """They go once this returns."""

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """They are read from now on."""


class Batch(list[Content]):
    """Records that are stored together."""

    def append(  # type: ignore[override]
        self,
        *,
        timestamp: int,
        key: bytes | None,
        value: bytes,
        headers: Sequence[tuple[str, bytes]],
    ) -> object | None:
        """See aiokafka: None where it is full."""
        if len(self) == BATCH_RECORDS_MAX:
            return None
        super().append((key, value, tuple(headers)))
        return self


class MemoryProducer(MemoryClient):
    """Sends. Half of the requests without an answer are sent again, by itself."""

    def create_batch(self) -> Batch:
        """See aiokafka."""
        return Batch()

    async def send_batch(
        self, batch: Batch, topic: str, *, partition: int
    ) -> asyncio.Task[SimpleNamespace]:
        """See aiokafka."""
        return asyncio.create_task(self._deliver(TopicPartition(topic, partition), batch))

    async def send_and_wait(self, topic: str, value: bytes, key: bytes) -> SimpleNamespace:
        """See aiokafka. It goes to the first partition."""
        return await self._deliver(TopicPartition(topic, 0), [(key, value, ())])

    async def _deliver(self, at: TopicPartition, contents: list[Content]) -> SimpleNamespace:
        while True:
            try:
                offset = await self._ask(lambda: self.broker.append(at, contents))
            except Unanswered as error:
                if not error.may_be_done or self.broker.random.random() < 0.5:
                    raise
            else:
                return SimpleNamespace(offset=offset)


class MemoryConsumer(MemoryClient):
    """Reads, as a member of a group."""

    def __init__(
        self,
        broker: Broker,
        ask: Ask,
        topics: Collection[str],
        group_id: str | None,
        reset: str,
    ) -> None:
        super().__init__(broker, ask)
        self.process = current_process()
        self.subscribed = topics
        self.generation = -1
        self._group = broker.group(group_id) if group_id is not None else None
        self._resets = reset == "earliest"
        self._listener: Listener | None = None
        self._at: dict[TopicPartition, int | None] = {}
        self._member: asyncio.Task[None] | None = None
        self._coordinator = SimpleNamespace(fetch_committed_offsets=self._fetch_committed)

    async def start(self) -> None:
        """See aiokafka."""
        await super().start()
        if self.subscribed:
            self.subscribe(self.subscribed)

    def subscribe(self, topics: Collection[str], listener: Listener | None = None) -> None:
        """See aiokafka."""
        self.subscribed, self._listener = tuple(topics), listener
        self._member = asyncio.create_task(self._belong())

    async def stop(self) -> None:
        """See aiokafka."""
        if self._member is not None:
            self._member.cancel()
            await asyncio.gather(self._member, return_exceptions=True)
            with suppress(Unanswered):
                await self._ask(lambda: self._require_group().leave(self))

    def _require_group(self) -> Group:
        if self._group is None:
            raise IllegalStateError("no group_id was given")
        return self._group

    # -- the group ---------------------------------------------------------------------------------

    async def _belong(self) -> None:
        group, joins = self._require_group(), False
        while True:
            pause = self.broker.beat_seconds
            with suppress(Unanswered):
                share = await self._ask(partial(group.beat, self, joins))
                is_new = share is None or share.generation != self.generation
                if is_new and not joins:
                    if self._listener is not None:
                        await self._listener.on_partitions_revoked(set(self._at))
                    self._at = {}
                if share is None:
                    pause = 0.025 if joins else 0.0
                elif is_new or joins:
                    self.generation, self._at = share.generation, dict.fromkeys(share.places)
                    if self._listener is not None:
                        await self._listener.on_partitions_assigned(set(share.places))
                joins = share is None
            await asyncio.sleep(pause)

    def assignment(self) -> set[TopicPartition]:
        """See aiokafka."""
        return set(self._at)

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """See aiokafka: where it has read up to, by default."""
        given = {at: each for at, each in self._at.items() if each is not None}
        given = dict(offsets) if offsets is not None else given
        await self._ask(lambda: self._require_group().commit(self, given))

    async def _fetch_committed(
        self, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, SimpleNamespace]:
        found = await self._ask(lambda: dict(self._require_group().committed))
        return {at: SimpleNamespace(offset=found[at]) for at in places if at in found}

    # -- records -----------------------------------------------------------------------------------

    async def topics(self) -> set[str]:
        """See aiokafka."""
        return await self._ask(lambda: set(self.broker.topics))  # type: ignore[no-any-return]

    async def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[Any, int]:
        """See aiokafka: nothing is ever deleted."""
        return dict.fromkeys(places, 0)

    async def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See aiokafka."""
        return await self._ask(lambda: {at: len(self.broker.log(at)) for at in places})  # type: ignore[no-any-return]

    async def position(self, at: TopicPartition) -> int:
        """See aiokafka."""
        return self._at[at] or 0

    def seek(self, at: TopicPartition, offset: int) -> None:
        """See aiokafka."""
        self._at[at] = offset

    async def getmany(
        self, *, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[SentRecord]]:
        """See aiokafka."""
        seconds = max(timeout_ms / 1_000, self.broker.look_seconds)
        end = asyncio.get_running_loop().time() + seconds
        while True:
            grown = self.broker.grown
            with suppress(Unanswered):
                if found := await self._fetch(max_records):
                    return found
            try:
                async with asyncio.timeout_at(end):
                    await grown.wait()
            except TimeoutError:
                return {}

    async def _fetch(self, most: int) -> dict[TopicPartition, list[SentRecord]]:
        for at in [at for at, position in self._at.items() if position is None]:
            committed = (await self._fetch_committed([at])).get(at)
            if committed is None and not self._resets:
                raise NoOffsetForPartitionError(at)
            if self._at.get(at, 0) is None:
                self._at[at] = 0 if committed is None else committed.offset
        asked = list(self._at.items())
        self.broker.random.shuffle(asked)  # partitions answer in any order
        ends = await self.end_offsets(dict(asked))
        found: dict[TopicPartition, list[SentRecord]] = {}
        for at, position in asked:
            if position is None or self._at.get(at) != position:  # it has gone, or was moved
                continue
            if position > ends[at]:
                if not self._resets:
                    raise OffsetOutOfRangeError({at: position})
                self._at[at] = position = 0
            if records := self.broker.log(at)[position : min(ends[at], position + most)]:
                found[at], most = records, most - len(records)
                self._at[at] = records[-1].offset + 1
        return found
