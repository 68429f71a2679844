"""The intake of confirms: what consumers say they have applied moves deliveries to `consumed`.

A confirm is a message of its own, and at least once like every other: it may be lost, late,
repeated, or about something that nobody knows. Offsets are committed behind the database, so
a crash repeats.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from asyncpg.pgproto import pgproto

from orderchain.clients.kafka import (
    DRIVER_ERRORS,
    AIOKafkaConsumer,
    close_client,
    connecting,
    make_consumer,
    not_allowed,
    start_client,
)
from orderchain.clients.kafka_config import KafkaConfig
from orderchain.errors import OrderchainError
from orderchain.printable import printable
from orderchain.reasons import reason_of
from outbox.confirm_record import APPLIED, decode_confirms
from outbox.errors import LASTING, BadRecord
from outbox.store import progress_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from orderchain.clients.kafka import ConsumerRecord
    from outbox.acks import AckWriter
    from outbox.destination import Destination
    from outbox.dispatch import Dispatch
    from outbox.relay_config import RelayConfig
    from outbox.relay_stats import RelayStats
    from outbox.resend import Place
    from outbox.store import RelayStore

_log = logging.getLogger(__name__)

_FETCH_MS: Final = 200
"""How long a fetch may wait for the first record."""

_RECORDS_MAX: Final = 500
"""Records of one round; each may hold thousands of confirms."""

_GATHER_SECONDS: Final = 0.03
"""After a round: what comes meanwhile is written in one statement. Nobody waits for `consumed`, and
a round for every record would cost more than the messages do."""

_GATHERED: Final = 500
"""Confirms of a round that is large enough as it is: the next one follows at once."""

_PROGRESS_SECONDS: Final = 0.5
"""How often the consumers' progress is written. The sweep, which reads it, is no faster."""

_PAUSE_SECONDS: Final = 1.0
"""Between two tries while the broker or the database is away."""

_COMMIT_EVERY_SECONDS: Final = 1.0
"""How often offsets are committed: a restart repeats as much, which is harmless."""


class ConfirmIntake:
    """Reads the confirm topics of all destinations, as a member of the relays' group."""

    def __init__(
        self,
        config: RelayConfig,
        store: RelayStore,
        dispatch: Dispatch,
        acks: AckWriter,
        stats: RelayStats,
    ) -> None:
        self._config = config
        self._kafka = KafkaConfig.of(config.kafka)
        self._store = store
        self._dispatch = dispatch
        self._acks = acks
        self._stats = stats
        self._changed = asyncio.Event()
        self._told: dict[Place, int] = {}  # progress that is not written yet
        self._told_at = 0.0

    def refresh(self) -> None:
        """Look at the destinations again: some may have a new confirm topic."""
        self._changed.set()

    async def run(self) -> None:
        """Take confirms in, until cancelled."""
        while True:
            topics = _confirm_topics(self._dispatch.destinations.values())
            self._changed.clear()
            if not topics:
                await self._changed.wait()
                continue
            try:
                await self._follow(topics)
            except LASTING:
                raise
            except (*DRIVER_ERRORS, OrderchainError) as error:
                reason = reason_of(not_allowed(error, self._kafka) or error)
                _log.warning("confirms can't be taken in: %s", reason)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self, topics: list[str]) -> None:
        """Take in the confirms of `topics` until others are wanted."""
        consumer = make_consumer(
            self._kafka,
            "confirm-intake",
            *topics,
            group_id=self._config.group,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=_FETCH_MS,
        )
        try:
            async with connecting(self._kafka, self._config.connect_seconds):
                await start_client(consumer)
            await self._take_all(consumer, topics)
        finally:
            await close_client(consumer, self._config.stop_seconds)

    async def _take_all(self, consumer: AIOKafkaConsumer, topics: list[str]) -> None:
        loop = asyncio.get_running_loop()
        committed_at = loop.time()
        is_ahead = False
        # What was not written was not committed either, so it is read again; and by now another
        # relay may have written what came after it.
        self._told = {}
        while True:
            if self._changed.is_set():
                self._changed.clear()
                if _confirm_topics(self._dispatch.destinations.values()) != topics:
                    return
            fetched = await consumer.getmany(timeout_ms=_FETCH_MS, max_records=_RECORDS_MAX)
            records = [record for some in fetched.values() for record in some]
            taken = await self.take(records)
            is_ahead = is_ahead or bool(records)
            if loop.time() - self._told_at >= _PROGRESS_SECONDS:
                await self._save_progress()
                self._told_at = loop.time()
            if is_ahead and loop.time() - committed_at >= _COMMIT_EVERY_SECONDS:
                # Behind the database: what is committed here is done there.
                await self._save_progress()
                await consumer.commit()
                committed_at, is_ahead = loop.time(), False
            if records and taken < _GATHERED:
                await asyncio.sleep(_GATHER_SECONDS)

    async def take(self, records: Iterable[ConsumerRecord]) -> int:
        """Write what records of a confirm topic say, and keep the progress that they tell.

        Returns how many confirms they held. Raises RetryError: then give them again.
        """
        applied: list[tuple[UUID, str]] = []
        retries: list[tuple[UUID, str, int]] = []
        progress: dict[Place, int] = {}
        for record in records:
            try:
                told = decode_confirms(record.value)
            except BadRecord as error:
                self._stats.bad_confirms[error.reason] += 1
                _log.warning(
                    "a record of %s was dropped: %s", printable(record.topic), reason_of(error)
                )
                continue
            consumer = told.consumer
            for confirm in told.confirms:
                message_id = pgproto.UUID(confirm.message_id)
                if confirm.kind == APPLIED:
                    applied.append((message_id, consumer))
                else:
                    retries.append((message_id, consumer, confirm.until_unix_ns))
            progress |= progress_of(consumer, told.progress)
        # Progress after them: a sweep that knew it before the confirms would take what is about to
        # be applied for lost, and send it again. That it knows it a moment later delays a resend.
        if retries:
            await self._store.postpone(retries)
            self._stats.retrying += len(retries)
        if applied:
            await self._apply(applied)
        self._told |= progress
        return len(applied) + len(retries)

    async def _save_progress(self) -> None:
        if known := self._known(self._told):
            await self._store.save_progress(known)
        self._told = {}

    async def _apply(self, applied: list[tuple[UUID, str]]) -> None:
        self._acks.overtaken(message_id for message_id, _ in applied)
        done = await self._store.apply(applied)
        stats = self._stats
        stats.consumed += done.consumed
        stats.early += done.early
        stats.late += done.late
        stats.repeated += done.repeated
        stats.unknown += done.unknown

    def _known(self, progress: dict[Place, int]) -> dict[Place, int]:
        """Leave out what no destination of ours asks for: strangers must not fill a table."""
        wanted = {
            (consumer, destination.topic)
            for destination in self._dispatch.destinations.values()
            for consumer in destination.consumers
        }
        return {place: offset for place, offset in progress.items() if place[:2] in wanted}


def _confirm_topics(destinations: Iterable[Destination]) -> list[str]:
    return sorted({each.confirm_topic for each in destinations if each.confirm_topic})
