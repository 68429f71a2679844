"""Takes records in: from the broker into the lanes, as many as may be held in memory."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from orderchain.backoff import Backoff
from orderchain.errors import RetryError
from orderchain.text import printable, reason_of
from outbox.consumer.delivery import read_delivery
from outbox.errors import BadRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from orderchain.clients.kafka import ConsumerRecord
    from outbox.consumer.delivery import Delivery
    from outbox.consumer.kit import ConsumerKit


_log = logging.getLogger(__name__)

FETCH_SECONDS: Final = 0.2
"""How long one look at the broker lasts: new partitions are noticed between two of them."""

RECORDS_MAX: Final = 5_000
"""Records of one look. Decoding them takes about 50 ms, in which nothing else runs."""

BROKER_PAUSE_SECONDS: Final = (0.1, 1.0)
"""Pause after a broker did not answer."""


class Receiving:
    """Reads continuously, and records which messages the senders may resend."""

    def __init__(self, kit: ConsumerKit) -> None:
        self._kit = kit
        self._oldest: dict[str, UUID | None] = {}  # by topic, since the last `take_oldest`

    async def run(self) -> None:
        """Never returns. A broker that is away is tried until it answers."""
        kit, pauses = self._kit, Backoff(*BROKER_PAUSE_SECONDS)
        while True:
            room = kit.config.held_max - kit.lanes.held
            if room <= 0 or kit.lanes.held_bytes >= kit.config.held_bytes_max:
                await kit.change(FETCH_SECONDS)
                continue
            try:
                records = await kit.source.records(FETCH_SECONDS, min(room, RECORDS_MAX))
            except RetryError as error:
                _log.warning("%s", reason_of(error))
                await asyncio.sleep(pauses.next_seconds())
                continue
            pauses.reset()
            if records:
                self._take_in(records)

    def take_oldest(self) -> dict[str, UUID | None]:
        """Return the oldest message that the senders of each topic had unfinished, and forget it.

        None for a topic if one of its senders did not report one. Topics of which nothing came are
        left out.
        """
        oldest, self._oldest = self._oldest, {}
        return oldest

    def _take_in(self, records: Sequence[ConsumerRecord]) -> None:
        kit = self._kit
        received_at = datetime.fromtimestamp(kit.clock.wall_ns() / 1e9, tz=UTC)
        kit.stats.received += len(records)
        deliveries = []
        for record in records:
            try:
                delivery = read_delivery(record, received_at)
            except BadRecord as error:
                self._pass_over(record, error)
                continue
            deliveries.append(delivery)
            self._hear(delivery)
        kit.lanes.add(deliveries)
        kit.changed.set()

    def _pass_over(self, record: ConsumerRecord, error: BadRecord) -> None:
        self._kit.stats.bad_records += 1
        _log.error(
            "%s/%d at %d: %s",
            printable(record.topic), record.partition, record.offset, reason_of(error),
        )  # fmt: skip
        held = self._kit.source.progress.of((record.topic, record.partition))
        if held is not None:
            held.finish(record.offset)

    def _hear(self, delivery: Delivery) -> None:
        told = delivery.oldest_unfinished
        known = self._oldest.setdefault(delivery.topic, told)
        if known is not None and (told is None or told < known):
            self._oldest[delivery.topic] = told
