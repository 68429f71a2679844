"""Reads the check topic and the confirm topics for a callback service."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

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
from orderchain.clock import Backoff, SystemClock
from orderchain.errors import OrderchainError
from orderchain.text import reason_of
from outbox.errors import LASTING

if TYPE_CHECKING:
    from orderchain.clock import Clock
    from outbox.callback.callback_service import CallbackService
    from outbox.callback.config import CallbackConfig

_log = logging.getLogger(__name__)

_FETCH_MS: Final = 200
_RECORDS_MAX: Final = 500
_PAUSE_SECONDS: Final = (0.25, 1.0)
"""Pause between two tries while the broker or the database is away."""

_CLOSE_SECONDS: Final = 5.0
_UNREAD: Final = -1


class CallbackIntake:
    """A member of the group that shares the topics.

    Offsets are committed after the store, so a crash repeats records, which the store recognizes.
    """

    def __init__(
        self, config: CallbackConfig, service: CallbackService, *, clock: Clock | None = None
    ) -> None:
        self._config = config
        self._kafka = KafkaConfig.of(config.kafka)
        self._service = service
        self._clock = clock or SystemClock()
        self._pauses = Backoff(*_PAUSE_SECONDS)

    async def run(self) -> None:
        """Take records in, until cancelled."""
        while True:
            try:
                await self._follow()
            except LASTING:
                raise
            except (*DRIVER_ERRORS, OrderchainError) as error:
                reason = reason_of(not_allowed(error, self._kafka) or error)
                _log.warning("callback: records can't be taken in: %s", reason)
            await asyncio.sleep(self._pauses.next_seconds())

    async def _follow(self) -> None:
        consumer = make_consumer(
            self._kafka,
            "callback",
            self._config.check_topic,
            *self._config.confirm_topics,
            group_id=self._config.name,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=_FETCH_MS,
        )
        try:
            async with connecting(self._kafka, self._config.connect_seconds):
                await start_client(consumer)
                places = _places(consumer, self._config)
                await self._service.caught_up(dict.fromkeys(places, _UNREAD))
            while True:
                await self._round(consumer)
                self._pauses.reset()
        finally:
            await close_client(consumer, _CLOSE_SECONDS)

    async def _round(self, consumer: AIOKafkaConsumer) -> None:
        """Take in what is there; then say until when everything was taken in."""
        confirms = [
            at for at in consumer.assignment() if at.topic in set(self._config.confirm_topics)
        ]
        now_ns = self._clock.wall_ns()
        async with asyncio.timeout(self._config.call_seconds):
            ends = await consumer.end_offsets(confirms) if confirms else {}
        fetched = await consumer.getmany(timeout_ms=_FETCH_MS, max_records=_RECORDS_MAX)
        for at, records in fetched.items():
            take = (
                self._service.take_checks
                if at.topic == self._config.check_topic
                else self._service.take_confirms
            )
            for record in records:
                await take(record.value)
        async with asyncio.timeout(self._config.call_seconds):
            if fetched:
                await consumer.commit()
            # Asked for before the fetch: what came since belongs to another round.
            read = {
                (at.topic, at.partition): now_ns
                for at in confirms
                if at in consumer.assignment() and await consumer.position(at) >= ends[at]
            }
        if read:
            await self._service.caught_up(read)


def _places(consumer: AIOKafkaConsumer, config: CallbackConfig) -> list[tuple[str, int]]:
    return [
        (topic, number)
        for topic in config.confirm_topics
        for number in sorted(consumer.partitions_for_topic(topic) or ())
    ]
