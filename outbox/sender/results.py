"""Results of sends: the broker's acknowledgements, and the confirms of consumers.

Deliveries that the broker has acknowledged move to `confirmed`, those that consumers have applied
to `consumed`. Both are written many at once.

A confirm is a message of its own, and at least once like every other: it may be lost, late,
repeated, or about something unknown. Offsets are committed after the database, so a crash repeats.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from chain_kernel.clients.kafka import (
    AIOKafkaConsumer,
    UnreadableRecord,
    close_client,
    make_consumer,
    start_client,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import connecting
from chain_kernel.clients.postgres import DriverUUID
from chain_kernel.text import SummedLog, printable, reason_of
from outbox.errors import BadRecord
from outbox.parts import endless
from outbox.records import APPLIED, decode_confirms, is_proven
from outbox.sender.message_sender import MISSING
from outbox.sender.store import BrokerAck, progress_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from uuid import UUID

    from chain_kernel.clients.kafka import ConsumerRecord
    from outbox.destination import Destination
    from outbox.sender.config import RelayConfig, RelayStats
    from outbox.sender.due_decisions import PublishedPlace
    from outbox.sender.message_sender import Sent, TopicErrors
    from outbox.sender.send_queues import MessageClaims, SendQueues
    from outbox.sender.store import RelayStore


_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_FETCH_MS: Final = 200
"""Longest wait of a fetch for the first record."""

_RECORDS_MAX: Final = 500
"""Records of one round; each may hold thousands of confirms."""

_GATHER_SECONDS: Final = 0.03
"""Pause after a round: what comes meanwhile is written in one statement. No caller waits for
`consumed`, and one round per record would cost more than the messages do."""

_GATHERED: Final = 500
"""Confirms of a round that is large enough: the next one follows at once."""

_PROGRESS_SECONDS: Final = 0.5
"""Least pause between two writes of the consumers' progress. The sweep, which reads it, is no
faster."""

MISSING_SECONDS: Final = 5.0
"""Pause between two looks for missing topics."""

LOOK_SECONDS: Final = 60.0
"""Pause between two checks that all topics still exist."""

_COMMIT_EVERY_SECONDS: Final = 1.0
"""Least pause between two commits of offsets: a restart repeats as much, which is harmless."""


class AckWriter:
    """The relay's settlement: writes the results of sends, each kind in one statement, later.

    An acknowledgement waits `ack_linger_seconds` at least, and twice that at most. If the
    consumer's confirm overtakes it, it need not be written at all. A crash during the wait costs a
    resend, as does a crash just before it.
    """

    def __init__(self, config: RelayConfig, store: RelayStore, stats: RelayStats) -> None:
        self._config = config
        self._store = store
        self._stats = stats
        # By message and its only consumer.
        self._young: dict[tuple[UUID, str], BrokerAck] = {}
        self._old: dict[tuple[UUID, str], BrokerAck] = {}  # those that have waited for long enough
        self._shared: list[BrokerAck] = []
        self._finals: list[BrokerAck] = []
        self._failures: list[tuple[UUID, UUID, str]] = []
        self._releases: list[tuple[UUID, UUID, str | None]] = []
        self._waiting = asyncio.Event()
        self._written = asyncio.Lock()

    def sent(self, destination: Destination, sent: Sent, claims: MessageClaims) -> None:
        """Keep acknowledgements, to be written unless a confirm overtakes them."""
        self._stats.sent += len(claims)
        topic, partition, first = sent.topic, sent.partition, sent.first_offset
        acks = [
            BrokerAck(message_id, token, topic, partition, first + place)
            for place, (message_id, token) in enumerate(claims)
        ]
        if destination.confirm == "none":
            self._finals += acks
        elif len(destination.consumers) == 1:
            (consumer,) = destination.consumers
            self._young.update(((ack.message_id, consumer), ack) for ack in acks)
        else:
            # The confirm of one consumer says nothing about the others: always written.
            self._shared += acks
        self._waiting.set()

    def failed(self, claims: MessageClaims, reason: str) -> None:
        """Keep failures, which count as a try."""
        self._failures += [(message_id, token, reason) for message_id, token in claims]
        self._waiting.set()

    def released(self, claims: MessageClaims, reason: str, *, is_noted: bool = False) -> None:
        """Keep claims to be given back; the reason goes with each if it `is_noted`."""
        noted = reason if is_noted else None
        self._releases += [(message_id, token, noted) for message_id, token in claims]
        self._waiting.set()

    def cut_off(self, claims: MessageClaims) -> None:
        """Leave them claimed until their time: the sweep finds them then."""

    def overtaken(self, applied: Iterable[tuple[UUID, str]]) -> None:
        """Forget acknowledgements of messages whose only consumer has confirmed.

        A reader that is not asked to confirm may have confirmed as well.
        """
        before = len(self._young) + len(self._old)
        for delivery in applied:
            if self._young.pop(delivery, None) is None:
                self._old.pop(delivery, None)
        self._stats.acks_overtaken += before - len(self._young) - len(self._old)

    async def run(self) -> None:
        """Write incoming results, until cancelled. Raises RetryError: then call it again."""
        while True:
            await self._waiting.wait()
            lingers = self._config.ack_linger_seconds > 0
            if lingers:
                await asyncio.sleep(self._config.ack_linger_seconds)
            await self.write(spares_young=lingers)

    async def write(self, *, spares_young: bool = False) -> None:
        """Write everything that waits. What could not be written keeps waiting; raises RetryError.

        `spares_young`: leave out the acknowledgements that have come since the last such write.
        """
        async with self._written:
            self._waiting.clear()
            try:
                await self._write_all(spares_young=spares_young)
            except BaseException:
                self._waiting.set()
                raise
            if self._young or self._old:
                self._waiting.set()

    async def _write_all(self, *, spares_young: bool) -> None:
        # Each list is emptied only after it is written. A repeat finds no token, and writes
        # nothing.
        self._stats.released += await _written(self._releases, self._store.release)
        self._stats.failed += await _written(self._failures, self._store.write_failures)
        if self._finals:
            finals = list(self._finals)
            self._stats.done_by_broker += await self._store.write_acks(finals, are_final=True)
            del self._finals[: len(finals)]
        acks = self._old if spares_young else self._old | self._young
        self._old, self._young = (self._young if spares_young else {}), {}
        if acks or self._shared:
            shared = list(self._shared)
            try:
                written = await self._store.write_acks([*acks.values(), *shared])
            except BaseException:
                self._old = acks | self._old
                raise
            del self._shared[: len(shared)]
            self._stats.acks_written += written


async def _written(waiting: list[_T], write: Callable[[list[_T]], Awaitable[None]]) -> int:
    """Write all that waits, and return how many that were; what comes meanwhile stays."""
    given = list(waiting)
    if given:
        await write(given)
        del waiting[: len(given)]
    return len(given)


@dataclass(eq=False)
class ConfirmIntake:
    """Reads the confirm topics of all destinations, as a member of the relays' group."""

    config: RelayConfig
    store: RelayStore
    send_queues: SendQueues
    acks: AckWriter
    stats: RelayStats
    topic_errors: TopicErrors

    def __post_init__(self) -> None:
        self.reads_since: float | None = None
        """Since when it reads without a break, by the loop's clock. None while it has no partition:
        before the group has given it one, or where other relays have them all.
        """
        self._kafka = KafkaConfig.of(self.config.kafka)
        self._changed = asyncio.Event()
        self._confirm_key: bytes | None = None
        self._progress: dict[PublishedPlace, int] = {}  # progress that is not written yet
        self._progress_at = 0.0
        self._dropped = SummedLog(_log, logging.WARNING)

    def refresh(self) -> None:
        """Look at the destinations again: some may have a new confirm topic."""
        self._changed.set()

    async def run(self) -> None:
        """Take confirms in, until cancelled. Raises what does not pass by itself."""
        try:
            await endless("confirms", self._take_in, self._kafka)
        finally:
            self._dropped.log()

    async def _take_in(self) -> None:
        self._confirm_key = await self.store.confirm_key()
        while True:
            topics = _confirm_topics(self.send_queues.destinations.values())
            self._changed.clear()
            if not topics:
                await self._changed.wait()
                continue
            await self._follow(topics)

    async def _follow(self, topics: list[str]) -> None:
        """Take in the confirms of those of `topics` that exist, until others are wanted."""
        consumer = make_consumer(
            self._kafka,
            "confirm-intake",
            group_id=self.config.name,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=_FETCH_MS,
        )
        try:
            async with connecting(self._kafka, self.config.connect_seconds):
                await start_client(consumer)
                there = await self._there(consumer, topics)
            if there:
                consumer.subscribe(there)
                await self._take_all(consumer, topics, there)
            elif not self._changed.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(MISSING_SECONDS):
                        await self._changed.wait()
        finally:
            self.reads_since = None
            await close_client(consumer, self.config.stop_seconds)

    async def _there(self, consumer: AIOKafkaConsumer, topics: list[str]) -> list[str]:
        """Return the topics that exist. A missing one would keep the others from being read."""
        async with asyncio.timeout(self.config.connect_seconds):
            known = await consumer.topics()
        for topic in topics:
            if topic in known:
                self.topic_errors.is_over(topic)
            else:
                self.topic_errors.found(topic, MISSING)
        return [topic for topic in topics if topic in known]

    async def _take_all(
        self, consumer: AIOKafkaConsumer, topics: list[str], there: list[str]
    ) -> None:
        loop = asyncio.get_running_loop()
        committed_at = looked_at = loop.time()
        is_ahead = False
        # What was not written was not committed either, so it is read again; and by now another
        # relay may have written what came after it.
        self._progress = {}
        while True:
            if self._changed.is_set():
                self._changed.clear()
                if _confirm_topics(self.send_queues.destinations.values()) != topics:
                    return
            if loop.time() - looked_at >= (MISSING_SECONDS if there != topics else LOOK_SECONDS):
                if await self._there(consumer, topics) != there:
                    return
                looked_at = loop.time()
            try:
                fetched = await consumer.getmany(timeout_ms=_FETCH_MS, max_records=_RECORDS_MAX)
            except UnreadableRecord as error:
                if error.missing is not None:
                    raise
                # As any bad confirm: what it would have confirmed is sent again.
                self.stats.bad_confirms["unreadable"] += 1
                _log.error("%s; passed over", reason_of(error))
                # A damaged head may name any offset as the next one.
                ends = await consumer.end_offsets([error.at])
                consumer.seek(error.at, min(error.next_offset, ends[error.at]))
                is_ahead = True
                continue
            since = loop.time() if self.reads_since is None else self.reads_since
            self.reads_since = since if consumer.assignment() else None
            records = [record for some in fetched.values() for record in some]
            taken = await self.take(records)
            is_ahead = is_ahead or bool(records)
            if loop.time() - self._progress_at >= _PROGRESS_SECONDS:
                await self._save_progress()
                self._progress_at = loop.time()
            if is_ahead and loop.time() - committed_at >= _COMMIT_EVERY_SECONDS:
                # After the database: what is committed here is done there.
                await self._save_progress()
                await consumer.commit()
                committed_at, is_ahead = loop.time(), False
            if records and taken < _GATHERED:
                await asyncio.sleep(_GATHER_SECONDS)

    async def take(self, records: Iterable[ConsumerRecord]) -> int:
        """Write what records of a confirm topic say, and keep the progress that they report.

        Returns how many confirms they held. Raises RetryError: then pass them again.
        """
        applied: list[tuple[UUID, str]] = []
        retries: list[tuple[UUID, str, int]] = []
        progress: dict[PublishedPlace, int] = {}
        key = self._confirm_key
        for record in records:
            try:
                decoded = decode_confirms(record.value)
            except BadRecord as error:
                self._drop_unreadable(record.topic, error)
                continue
            consumer = decoded.consumer
            # Those whose sender has received the message.
            proven = [
                each
                for each in decoded.confirms
                if key is not None
                and is_proven(
                    key, each.message_id, consumer, each.kind, each.until_unix_ns, each.proof
                )
            ]
            if len(proven) < len(decoded.confirms):
                self._drop_forged(record.topic, consumer, len(decoded.confirms) - len(proven))
            if proven:
                self._report_unlisted(record.topic, consumer, len(proven))
            for confirm in proven:
                message_id = DriverUUID(confirm.message_id)
                if confirm.kind == APPLIED:
                    applied.append((message_id, consumer))
                else:
                    retries.append((message_id, consumer, confirm.until_unix_ns))
            if proven and len(proven) == len(decoded.confirms):
                progress |= progress_of(consumer, decoded.progress)
        # Progress after them: a sweep that knew it before the confirms would take deliveries that
        # are about to be applied for lost, and resend them. If it knows it a moment later, that
        # delays a resend.
        if retries:
            await self.store.postpone(retries)
            self.stats.retrying += len(retries)
        if applied:
            await self._apply(applied)
        self._progress |= progress
        return len(applied) + len(retries)

    def _report_unlisted(self, topic: str, consumer: str, count: int) -> None:
        """Log that a consumer applies what another one is to confirm: often a misspelt name."""
        destinations = self.send_queues.destinations.values()
        if any(consumer in each.consumers for each in destinations if each.confirm_topic == topic):
            return
        whose = f"no destination with the confirm topic {printable(topic)} lists the consumer"
        why = f"{whose} {printable(consumer)}, which has applied or parked messages"
        self._dropped.add("unlisted", count, lambda reported: f"{why}: {reported:,}")

    def _drop_unreadable(self, topic: str, error: BadRecord) -> None:
        self.stats.bad_confirms[error.reason] += 1
        why = f"records of {printable(topic)} were dropped: {reason_of(error)}"
        self._dropped.add(error.reason, 1, lambda count: f"{why}: {count:,}")

    def _drop_forged(self, topic: str, consumer: str, count: int) -> None:
        """Count confirms that prove nothing: forged, or of messages of another database."""
        self.stats.bad_confirms["proof"] += count
        whose = f"confirms of {printable(consumer)} on {printable(topic)}"
        why = f"{whose} were dropped, since their proofs are wrong"
        self._dropped.add("proof", count, lambda dropped: f"{why}: {dropped:,}")

    async def _save_progress(self) -> None:
        # What none of our destinations asks for is left out: strangers must not fill a table.
        wanted = {
            (consumer, destination.topic)
            for destination in self.send_queues.destinations.values()
            for consumer in destination.consumers
        }
        known = {at: offset for at, offset in self._progress.items() if at[:2] in wanted}
        if known:
            await self.store.save_progress(known)
        self._progress = {}

    async def _apply(self, applied: list[tuple[UUID, str]]) -> None:
        self.acks.overtaken(applied)
        done = await self.store.apply(applied)
        stats = self.stats
        stats.consumed += done.consumed
        stats.early += done.early
        stats.late += done.late
        stats.repeated += done.repeated
        stats.unknown += done.unknown


def _confirm_topics(destinations: Iterable[Destination]) -> list[str]:
    return sorted({each.confirm_topic for each in destinations if each.confirm_topic})
