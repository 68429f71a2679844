"""What the parts of one consumer share."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orderchain.backoff import Backoff
from orderchain.monitoring import Metric
from orderchain.text import reason_of
from outbox.confirm_record import APPLIED, RETRYING, Confirm, proof_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orderchain.clock import Clock
    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.confirm_loop import ConfirmSender
    from outbox.consumer.delivery import Delivery
    from outbox.consumer.filters import Filter
    from outbox.consumer.inbox import Inbox
    from outbox.consumer.key_queues import Lanes
    from outbox.consumer.record_source import DestinationRecords
    from outbox.session import ConsumerConnections


_log = logging.getLogger(__name__)

PAUSE_SECONDS_MIN: Final = 0.05
"""Pause after the first interruption: a broken connection is most often back at once."""

PAUSE_SECONDS_MAX: Final = 2.0
"""Longest pause while a database stays away: how late its return may be noticed."""


class Refused(Exception):
    """Raised by a handler when no retry can help: the message is a dead letter at once."""


@dataclass
class ConsumerStats:
    """Counts since the start; none of them falls."""

    received: int = 0
    """Records, repeats included."""
    bad_records: int = 0
    """Records that are not our messages. They are skipped."""
    applied: int = 0
    """Messages whose effect has committed."""
    repeated: int = 0
    """Messages that came again after that: no work was done, but the confirm was resent."""
    failures: int = 0
    """Calls of a handler that failed."""
    parked: int = 0
    """Messages parked, for a retry or after another one of their key."""
    dead: int = 0
    """Messages that became dead letters."""
    waits: int = 0
    """Messages found in another worker's hands, and left alone for a while."""
    interruptions: int = 0
    """Times that work was interrupted, mostly since the database was away; it was retried."""


_HELP: Final = {
    "received": "Records, repeats included.",
    "bad_records": "Records that are not our messages.",
    "applied": "Messages whose effect has committed.",
    "repeated": "Messages that came again after that.",
    "failures": "Calls of a handler that failed.",
    "parked": "Messages parked, for a retry or after another one of their key.",
    "dead": "Messages that became dead letters.",
    "waits": "Messages found in another worker's hands.",
    "interruptions": "Times that work was interrupted, mostly since the database was away.",
}


def _counter(name: str, text: str) -> Metric[ConsumerStats]:
    full = f"orderchain_outbox_consumer_{name}_total"
    return Metric(full, "counter", text, lambda stats: getattr(stats, name))


METRICS: Final = tuple(_counter(name, text) for name, text in _HELP.items())
"""What a consumer counts, with the label `consumer`."""


@dataclass(kw_only=True)
class ConsumerKit:
    """The ports of a consumer, and what its parts share."""

    config: ConsumerConfig
    inbox: Inbox
    connections: ConsumerConnections
    filter: Filter
    clock: Clock
    lanes: Lanes[Delivery]
    source: DestinationRecords
    confirms: ConfirmSender
    stats: ConsumerStats
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be work, or room, or the end."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there are confirms to send."""
    paused_until: float = 0.0
    """By the loop's clock. Nothing is begun before it."""
    pauses: Backoff = field(default_factory=lambda: Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX))

    async def change(self, seconds: float) -> None:
        """Wait until there may be something to do, or until `seconds` have passed."""
        self.changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self.changed.wait()

    # -- a delivery is dealt with: what it came to is durable ------------------------------------

    def applied(self, deliveries: Iterable[Delivery]) -> None:
        """Record messages as applied, now or before: finish, and confirm."""
        for delivery in deliveries:
            self._confirm(delivery, APPLIED, 0)
            self.finished(delivery)

    def parked(self, delivery: Delivery, until_ns: int) -> None:
        """Record a message as parked: finish, and report to the sender until when."""
        self._confirm(delivery, RETRYING, until_ns)
        self.finished(delivery)

    def finished(self, delivery: Delivery) -> None:
        """Allow the committed offset to move past a message."""
        held = self.source.progress.of(delivery.place)
        if held is not None:
            held.finish(delivery.offset)

    def _confirm(self, delivery: Delivery, kind: int, until_ns: int) -> None:
        token = delivery.confirm_token
        if delivery.confirm_topic is None or token is None:
            return
        proof = proof_of(token, self.config.name, kind, until_ns)
        confirm = Confirm(
            delivery.message_id.bytes, kind, until_ns, delivery.partition, delivery.offset, proof
        )
        self.confirms.add(delivery.confirm_topic, confirm)
        self.settled.set()

    def dealt_with(self, deliveries: Sequence[Delivery]) -> None:
        """Finish messages with nothing to report, and open their lanes."""
        for delivery in deliveries:
            self.finished(delivery)
        self.release(deliveries)

    # -- a delivery leaves a worker's hands ------------------------------------------------------

    def release(self, deliveries: Iterable[Delivery]) -> None:
        """Open the lanes of messages that are dealt with."""
        self.lanes.release(deliveries)
        self.changed.set()

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Take back messages that were not dealt with; their turn comes again."""
        self.lanes.put_back(deliveries)
        self.changed.set()

    def set_aside(self, delivery: Delivery) -> None:
        """Leave a message alone for a while: another worker is on it."""
        self.stats.waits += 1
        delivery.looked_before = True
        loop = asyncio.get_running_loop()
        loop.call_later(self.config.busy_seconds, self.put_back, [delivery])

    # -- interruptions ---------------------------------------------------------------------------

    def interrupted(self, error: BaseException) -> None:
        """Begin nothing for a while: the database is away, or in trouble. Longer each time."""
        kind, reason = type(error).__name__, reason_of(error)
        _log.warning("work was broken off, and is done again: %s: %s", kind, reason)
        self.stats.interruptions += 1
        self.paused_until = asyncio.get_running_loop().time() + self.pauses.next_seconds()

    def worked(self) -> None:
        """Record that the database is there."""
        self.pauses.reset()
