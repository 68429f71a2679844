"""Records of the topics of one consumer, as a member of its Kafka group, and into its queues."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chain_kernel.clients.kafka import (
    AIOKafkaConsumer,
    CommitFailedError,
    ConsumerRebalanceListener,
    IllegalStateError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicPartition,
    close_client,
    make_admin,
    make_consumer,
    start_client,
    started,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, connecting, reading_error
from chain_kernel.clock import Backoff, time_of
from chain_kernel.errors import OrderchainError, RetryError, SettingError, TopicError
from chain_kernel.start_at import StartAt
from chain_kernel.text import SummedLog, counted, printable, reason_of
from outbox.consumer.delivery import read_delivery
from outbox.consumer.in_flight import (
    ConsumeProgress,
    PartitionEnds,
    PartitionFloors,
    begin_offset,
    chosen_offset,
    is_held,
)
from outbox.consumer.inbox import keep_moved
from outbox.errors import BadRecord
from outbox.sender.message_sender import TopicErrors

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Mapping,
        Sequence,
    )
    from uuid import UUID

    from chain_kernel.clients.kafka import ConsumerRecord
    from chain_kernel.clock import Clock
    from outbox.consumer.config import ConsumerConfig, ConsumerStats
    from outbox.consumer.delivery import Delivery, Pace
    from outbox.consumer.in_flight import KeyQueues, Partition


_log = logging.getLogger(__name__)

ISOLATION_LEVEL: Final = "read_uncommitted"
"""No sender of ours uses transactions: one that a stranger leaves open would stop all."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one partition at once: what waits in memory in addition to the records that are held."""

METADATA_SECONDS: Final = 5.0
"""Longest time until a topic that is made after the start, or a new partition, is found. aiokafka
would look every five minutes, and a consumer that was started before its topic would do nothing
until then."""

POLL_INTERVAL_MS: Final = 86_400_000
"""A consumer whose database is away fetches nothing for as long as that lasts. It must keep its
partitions: giving them up would not help, since the others wait for the same database."""

FETCH_SECONDS: Final = 0.2
"""Longest wait of one fetch: new partitions are noticed between two of them."""

RECORDS_MAX: Final = 5_000
"""Records of one look. Decoding them takes about 50 ms, in which nothing else runs."""

BROKER_PAUSE_SECONDS: Final = (0.1, 1.0)
"""Pause after a broker did not answer."""


class DestinationRecords(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    """The records of a consumer's topics, and the progress in each partition.

    The group says which partitions are ours; we decide where to begin in them (see
    `begin_offset`), and we commit the smallest unfinished offsets.
    """

    def __init__(
        self, config: ConsumerConfig, dropped: Callable[[frozenset[Partition]], None]
    ) -> None:
        self.progress = ConsumeProgress()
        self._config = config
        self._kafka = KafkaConfig.of(config.kafka)
        self._dropped = dropped  # called for partitions that are no longer ours
        self._starts: Mapping[str, Sequence[int]] = {}
        self._new_topics: Collection[str] = ()
        self._consumer: AIOKafkaConsumer | None = None
        self._topic_errors = TopicErrors()
        self._next_look = 0.0

    async def start(self) -> None:
        """Join the group. Raises ConnectError, RetryError."""
        self._consumer = consumer = _kafka_consumer(self._config)
        try:
            async with connecting(self._kafka, self._config.connect_seconds):
                await start_client(consumer)
        except OrderchainError:
            await self.close()
            raise
        consumer.subscribe(self._config.topics, listener=self)
        # Not at once: the client only now asks for these topics.
        self._next_look = asyncio.get_running_loop().time() + METADATA_SECONDS

    async def first_starts(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """Return where to begin in topics that were never begun, by partition from 0 on.

        Partitions that are left out begin at their oldest record: all of them, if that is where to
        start, and those of a topic that is not there yet. Raises ConnectError, RetryError.
        """
        start_at = self._config.start_at
        found = dict[str, list[int]]((topic, []) for topic in topics)
        if start_at.at == "beginning":
            return found
        try:
            async with asyncio.timeout(self._config.connect_seconds):
                partitions = await _all_partitions(self._config, topics)
                ends = await _ends(self._running(), partitions, start_at)
        except DRIVER_ERRORS as error:
            raise self._unanswered("find where to begin", error) from error
        for at in partitions:  # in the order of their numbers
            found[at.topic].append(chosen_offset(start_at, ends[at]))
        return found

    def begin_at(self, starts: Mapping[str, Sequence[int]], new_topics: Collection[str]) -> None:
        """Begin there, by topic, where there is no committed offset. Call it before `records`.

        `new_topics`: those that are begun for the first time.
        """
        self._starts, self._new_topics = starts, new_topics

    async def records(self, timeout_seconds: float, most: int) -> list[ConsumerRecord]:
        """Return the next records, all of them new; empty if none came in time.

        Raises RetryError if the broker does not answer, TopicError for a record that this process
        cannot decode.
        """
        consumer = self._running()
        # Before anything is fetched: an error after that would lose what was received.
        await self._place_new(consumer)
        try:
            found = await consumer.getmany(timeout_ms=int(timeout_seconds * 1000), max_records=most)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            self._revoke({at for at in consumer.assignment() if _names(error, at)})
            found = {}
        except DRIVER_ERRORS as error:
            raise self._unanswered("read messages", error) from error
        new = [
            record
            for at, records in found.items()
            if (held := self.progress.of((at.topic, at.partition))) is not None
            for record in records
            if held.receive(record.offset)
        ]
        self._look_for_topics(consumer)
        return new

    def _look_for_topics(self, consumer: AIOKafkaConsumer) -> None:
        """Report topics that are not there, and those that are again, as often as is known."""
        now = asyncio.get_running_loop().time()
        if now < self._next_look:
            return
        self._next_look = now + METADATA_SECONDS
        self._topic_errors.look_at(self._config.topics, consumer.partitions_for_topic)

    async def commit(self) -> None:
        """Commit what has moved. Raises RetryError; the next call commits what this one did not."""
        offsets = self.progress.to_commit()
        if offsets:
            await self._commit(self._running(), offsets)
            self.progress.committed(offsets)

    def partitions(self) -> list[Partition]:
        """Return the partitions of the topics, other processes' included, as far as is known."""
        if (consumer := self._consumer) is None:
            return []
        topics = self._config.topics
        return [(each, n) for each in topics for n in consumer.partitions_for_topic(each) or ()]

    async def read_to_end(self) -> set[Partition]:
        """Return those of our partitions of which everything sent before the call is committed.

        Empty if the broker does not answer: nothing is known then.
        """
        committed, consumer = self.progress.committed_offsets(), self._consumer
        if not committed or consumer is None:
            return set()
        try:
            async with asyncio.timeout(self._config.request_seconds):
                ends = await consumer.end_offsets([TopicPartition(*each) for each in committed])
        except DRIVER_ERRORS:
            return set()
        return {each for each, offset in committed.items() if offset >= ends[TopicPartition(*each)]}

    async def close(self) -> None:
        """Leave the group; never raises, never waits beyond `close_seconds`."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_client(consumer, self._config.close_seconds)

    # -- partitions that come and go -------------------------------------------------------------

    async def _place_new(self, consumer: AIOKafkaConsumer) -> None:
        """Begin the partitions that the group has given us since the last time.

        This is not done in the group's own callback, whose errors aiokafka swallows. What was
        fetched from such a partition before is ignored: it begins where we say.
        """
        new = [
            at for at in consumer.assignment() if self.progress.of((at.topic, at.partition)) is None
        ]
        if not new:
            return
        try:
            async with asyncio.timeout(self._config.request_seconds):
                begins = await self._begins(consumer, new)
        except DRIVER_ERRORS as error:
            raise self._unanswered("find where to begin", error) from error
        for at, offset in begins.items():
            with suppress(IllegalStateError):  # it has gone to another process meanwhile
                consumer.seek(at, offset)
                self.progress.assign((at.topic, at.partition), offset)

    async def _begins(
        self, consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        ends = await _ends(consumer, partitions)
        committed = await _committed(consumer, partitions)
        begins: dict[TopicPartition, int] = {}
        for at in ends:
            starts = self._starts.get(at.topic, ())
            start = starts[at.partition] if at.partition < len(starts) else None
            begins[at] = begin_offset(start, committed[at], ends[at])
        for at, offset in committed.items():
            if offset is not None and not is_held(offset, ends[at]):
                _log.error(
                    "%s/%d: the committed offset %d is not in the log (%d to %d): beginning at the "
                    "oldest record", at.topic, at.partition, offset, ends[at].first, ends[at].end,
                )  # fmt: skip
        chosen = {(at.topic, at.partition): begins[at] for at in begins if committed[at] is None}
        for (topic, number), offset in chosen.items():
            if topic not in self._new_topics:
                _log.warning(
                    "%s/%d: group %s has no offset here, since the partition is new or its offset "
                    "has expired: beginning at %d",
                    topic, number, printable(self._config.name), offset,
                )  # fmt: skip
        if chosen:
            # From here on an offset that is missing has expired.
            await self._commit(consumer, chosen)
        return begins

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Commit what is finished while the partitions are ours, and forget them.

        Work on them goes on. Their next owner may receive the same messages; the inbox keeps them
        from taking effect twice.
        """
        with suppress(RetryError):
            await self.commit()
        self._revoke(revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Do nothing: `records` finds them at its next call."""

    def _revoke(self, partitions: Iterable[TopicPartition]) -> None:
        gone = frozenset((at.topic, at.partition) for at in partitions)
        self.progress.revoke(gone)
        self._dropped(gone)

    async def _commit(self, consumer: AIOKafkaConsumer, offsets: dict[Partition, int]) -> None:
        try:
            async with asyncio.timeout(self._config.request_seconds):
                await consumer.commit(
                    {TopicPartition(*place): offset for place, offset in offsets.items()}
                )
        except DRIVER_ERRORS as error:
            raise self._unanswered("commit", error) from error

    def _unanswered(self, act: str, error: Exception) -> TopicError | RetryError:
        """Return what to raise where to `act` has failed with `error`."""
        doing = f"{act} of {', '.join(self._config.topics)}"
        return reading_error(error, self._kafka, doing)

    def _running(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise SettingError("record source", "not started", "start() first")
        return self._consumer


@dataclass(kw_only=True, eq=False)
class RecordIntake:
    """Takes records into the queues, as many as may be held in memory.

    It reads continuously, and records which messages the senders may resend.
    """

    config: ConsumerConfig
    source: DestinationRecords
    queues: KeyQueues[Delivery]
    pace: Pace
    clock: Clock
    stats: ConsumerStats
    _floors: dict[Partition, PartitionFloors] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._passed_over = SummedLog(_log, logging.ERROR)
        self._trusted = self.config.trusted

    async def run(self) -> None:
        """Never returns. A broker that is away is tried until it answers."""
        try:
            await self._take_all()
        finally:
            self._passed_over.log()

    async def _take_all(self) -> None:
        config, queues = self.config, self.queues
        pauses = Backoff(*BROKER_PAUSE_SECONDS)
        while True:
            room = config.held_max - queues.held
            if room <= 0 or queues.held_bytes >= config.held_bytes_max:
                await self.pace.wait(FETCH_SECONDS)
                continue
            try:
                records = await self.source.records(FETCH_SECONDS, min(room, RECORDS_MAX))
            except TopicError:  # a record that cannot be read: all before it is worked off first
                while queues.held:
                    await self.pace.wait(FETCH_SECONDS)
                raise
            except RetryError as error:
                _log.warning("%s", reason_of(error))
                await asyncio.sleep(pauses.next_seconds())
                continue
            pauses.reset()
            if records:
                self._take_in(records)

    async def floors(self, highest: Mapping[str, UUID]) -> dict[Partition, UUID | None]:
        """Return, of our partitions, the id below which no message will come; None: not known.

        Those of which nothing is known yet are left out. `highest`: by topic, the highest floor of
        any partition, as known before the call.
        """
        read = await self.source.read_to_end()
        found: dict[Partition, UUID | None] = {}
        for place, committed in self.source.progress.committed_offsets().items():
            floors = self._floors.get(place)
            is_idle = place in read and (floors is None or floors.is_quiet)
            if is_idle and (floor := highest.get(place[0])) is not None:
                # What comes here is sent from now on, so after the record with that floor. Its own
                # records may have been the last for years, and would keep the inbox that long.
                found[place] = floor
            elif floors is not None:
                found[place] = floors.take(committed)
        return found

    def _take_in(self, records: Sequence[ConsumerRecord]) -> None:
        received_at, trusted = time_of(self.clock.wall_ns()), self._trusted
        self.stats.received += len(records)
        deliveries = []
        for record in records:
            try:
                delivery = read_delivery(record, received_at, trusted)
            except BadRecord as error:
                self._pass_over(record, error)
                continue
            deliveries.append(delivery)
            floors = self._floors.setdefault(delivery.place, PartitionFloors())
            floors.hear(delivery.offset, delivery.oldest_unfinished)
        self.queues.add(deliveries)

    def _pass_over(self, record: ConsumerRecord, error: BadRecord) -> None:
        self.stats.bad_records += 1
        place = f"{printable(record.topic)}/{record.partition} at {record.offset}"
        what = f"such as {place}: {reason_of(error)}"
        self._passed_over.add(
            error.reason, 1, lambda count: f"passed over {counted(count, 'record')}, {what}"
        )
        held = self.source.progress.of((record.topic, record.partition))
        if held is not None:
            held.finish(record.offset)


async def move_start(config: ConsumerConfig, start_at: StartAt) -> dict[Partition, int]:
    """Move a consumer that is not running to `start_at` in every partition; return the new offsets.

    Going back repeats messages, which the inbox keeps from taking effect again; going forward skips
    those between, which is your responsibility. If it raises, call it again: it may be half done.

    Raises:
        SettingError: a process of this consumer is running, or a topic does not exist.
        ConnectError: a server refuses the login, or its certificate does not hold.
        RetryError: the broker or the database is away.
    """
    start_at.require_topic()
    async with _acting(config) as consumer:
        partitions = await _all_partitions(config, config.topics)
        for topic in config.topics:
            if TopicPartition(topic, 0) not in partitions:
                raise SettingError("topic", topic, "one that exists")
        consumer.assign(partitions)
        ends = await _ends(consumer, partitions, start_at)
        offsets = {at: chosen_offset(start_at, ends[at]) for at in partitions}
        await consumer.commit(offsets)
    starts: dict[str, list[int]] = {topic: [] for topic in config.topics}
    for at in partitions:
        starts[at.topic].append(offsets[at])
    await keep_moved(config, starts)
    return {(at.topic, at.partition): offset for at, offset in offsets.items()}


async def next_offset_of(config: ConsumerConfig, at: Partition) -> int:
    """Return the offset from which on a consumer goes on in a partition, once it runs.

    Raises SettingError if it has committed none there; ConnectError, RetryError.
    """
    async with _acting(config) as consumer:
        return await _next_offset(consumer, config, TopicPartition(*at))


async def go_past(
    config: ConsumerConfig,
    at: Partition,
    start: int,
    next_offset: int,
    store: Callable[[], Awaitable[None]],
) -> None:
    """Have a consumer that is not running go on at `next_offset`; `start` is where it would go on.

    `store` stores who does that. It is called before the move: where that fails then, the act is
    there and the move is not, and a repeat makes it. Raises SettingError if a process of the
    consumer is running; ConnectError; RetryError, also if it has moved from `start` meanwhile.
    """
    # This moves nothing, and is refused while a process runs: then no act is stored.
    await _move(config, at, start, start)
    await store()  # with no client of Kafka open: a slow database is not a broker that is away
    await _move(config, at, start, next_offset)


async def _move(config: ConsumerConfig, at: Partition, start: int, next_offset: int) -> None:
    place = TopicPartition(*at)
    async with _acting(config) as consumer:
        if await _next_offset(consumer, config, place) != start:
            raise RetryError(f"consumer {printable(config.name)} has moved meanwhile")
        await consumer.commit({place: next_offset})


async def _next_offset(
    consumer: AIOKafkaConsumer, config: ConsumerConfig, place: TopicPartition
) -> int:
    consumer.assign([place])
    committed = (await _committed(consumer, [place]))[place]
    if committed is None:
        expected = f"one with an offset in {place.topic}/{place.partition}"
        raise SettingError("consumer", config.name, expected)
    return begin_offset(None, committed, (await _ends(consumer, [place]))[place])


@asynccontextmanager
async def _acting(config: ConsumerConfig) -> AsyncIterator[AIOKafkaConsumer]:
    """Act on offsets of a consumer. Raises SettingError for a commit while a process of it runs."""
    kafka, consumer = KafkaConfig.of(config.kafka), _kafka_consumer(config)
    async with (
        connecting(kafka, config.connect_seconds, doing=f"commit as group {config.name}"),
        started(consumer, config.close_seconds),
    ):
        try:
            yield consumer
        except CommitFailedError as error:
            # The driver's own timeout of a session (aiokafka 0.14).
            expected = (
                "one of which no process is running: stop it first (one that was killed, or whose "
                "end the broker did not hear of, counts for 10 s)"
            )
            raise SettingError("consumer", config.name, expected) from error


async def _all_partitions(config: ConsumerConfig, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of topics, by number; a topic that is not there has none."""
    request_ms = int(config.request_seconds * 1000)
    kafka = KafkaConfig.of(config.kafka)
    admin = make_admin(kafka, f"consumer-{config.name}", request_timeout_ms=request_ms)
    async with started(admin, config.close_seconds):
        # All of them: a topic that is asked for by its name might be created by that.
        found = {topic["topic"]: topic["partitions"] for topic in await admin.describe_topics()}
    return [TopicPartition(topic, n) for topic in topics for n in range(len(found.get(topic, ())))]


async def _ends(
    consumer: AIOKafkaConsumer,
    partitions: Collection[TopicPartition],
    start_at: StartAt = StartAt("beginning"),  # noqa: B008 - it is frozen
) -> dict[TopicPartition, PartitionEnds]:
    firsts = await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    at_time: dict[TopicPartition, Any] = {}
    if start_at.time_ms is not None:
        at_time = await consumer.offsets_for_times(dict.fromkeys(partitions, start_at.time_ms))
    return {
        at: PartitionEnds(
            first=firsts[at],
            end=ends[at],
            at_time=None if at_time.get(at) is None else at_time[at].offset,
        )
        for at in partitions
    }


async def _committed(
    consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Return the committed offsets, in one request: `consumer.committed` makes one for each."""
    found = await consumer._coordinator.fetch_committed_offsets(partitions)
    return {at: found[at].offset if at in found else None for at in partitions}


def _kafka_consumer(config: ConsumerConfig) -> AIOKafkaConsumer:
    return make_consumer(
        KafkaConfig.of(config.kafka),
        f"consumer-{config.name}",
        group_id=config.name,
        isolation_level=ISOLATION_LEVEL,
        max_partition_fetch_bytes=FETCH_BYTES,
        metadata_max_age_ms=int(METADATA_SECONDS * 1000),
        max_poll_interval_ms=POLL_INTERVAL_MS,
        request_timeout_ms=int(config.request_seconds * 1000),
    )


def _names(error: Exception, at: TopicPartition) -> bool:
    """Return whether an error about offsets is about this partition, or names none."""
    named = error.args[0] if error.args else None
    if isinstance(named, TopicPartition):
        return bool(named == at)
    return at in named if isinstance(named, dict) else True
