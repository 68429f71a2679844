"""Topics that cannot be used: remembered for a while, so that nobody asks for them at every turn.

A topic is missing, or hidden or closed to our login. What goes to it waits, and that is no try;
what goes elsewhere goes on. It is asked for again after a pause, by one message at first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orderchain.backoff import Backoff
from orderchain.errors import RetryError
from orderchain.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from orderchain.clients.kafka import AIOKafkaProducer

_log = logging.getLogger(__name__)

MISSING: Final = "is not there, or hidden from this login"
CLOSED: Final = "may not be written to by this login"

_LOOKS: Final = 5
"""At a topic that is not known: a broker that makes topics on request needs a moment."""

_LOOK_SECONDS: Final = 0.1
"""Between two of them."""

PAUSE_SECONDS_MIN: Final = 5.0
"""After the first look: a topic that was forgotten is most often made within minutes."""

PAUSE_SECONDS_MAX: Final = 60.0
"""How late a topic that was made may be noticed."""


class TopicTrouble(RetryError):
    """A topic cannot be used. Nothing was sent to it; the same may succeed later."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"topic {topic} {reason}")
        self.topic = topic


class _Known(Struct):
    reason: str
    pauses: Backoff
    until: float


class TopicTroubles:
    """The topics in trouble, by name. As many as there are topics of destinations, at most."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, random: Random | None = None
    ) -> None:
        self._now = now
        self._random = random
        self._known: dict[str, _Known] = {}
        self.changed = asyncio.Event()
        """Set whenever one was found again, or is over."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._known)

    def __contains__(self, topic: str) -> bool:
        """Whether it was in trouble when it was looked at last."""
        return topic in self._known

    @property
    def reasons(self) -> dict[str, str]:
        """What is wrong, by topic."""
        return {topic: known.reason for topic, known in self._known.items()}

    def is_paused(self, topic: str) -> bool:
        """Say whether it was found to be in trouble so recently that it is left alone."""
        known = self._known.get(topic)
        return known is not None and self._now() < known.until

    def pause_of(self, topic: str) -> TopicTrouble | None:
        """Return what is wrong with a topic that is left alone for now, None for any other."""
        return TopicTrouble(topic, self._known[topic].reason) if self.is_paused(topic) else None

    def found(self, topic: str, reason: str) -> TopicTrouble:
        """Remember a topic for a while, twice as long after each pause; return what to raise."""
        error = TopicTrouble(topic, reason)
        known = self._known.get(topic)
        if known is None:
            _log.error("%s; it is tried again later", printable(str(error)))
            pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, random=self._random)
        elif self.is_paused(topic):  # found by several sends that were under way together
            return error
        else:
            pauses = known.pauses
        self._known[topic] = _Known(reason, pauses, self._now() + pauses.next_seconds())
        self.changed.set()
        return error

    def is_over(self, topic: str) -> None:
        """Forget a topic that could be used."""
        if self._known.pop(topic, None) is not None:
            _log.warning("topic %s can be used again", printable(topic))
            self.changed.set()


async def partitions_of(
    producer: AIOKafkaProducer, topic: str, troubles: TopicTroubles
) -> list[int]:
    """Return the partitions of a topic, as a started producer knows them or finds them out.

    Raises TopicTrouble; ConnectionError where no broker answers. To be given a deadline.
    """
    # The library's own question waits for the topic until the deadline of a request.
    client, looks = producer.client, 0
    while not (known := client.cluster.partitions_for_topic(topic)):
        if topic in client.cluster.unauthorized_topics:
            raise troubles.found(topic, CLOSED)
        if looks == _LOOKS:
            raise troubles.found(topic, MISSING)
        if looks:
            await asyncio.sleep(_LOOK_SECONDS)
        client.add_topic(topic)
        if not await client.force_metadata_update():
            raise ConnectionError(f"no broker has answered for topic {topic}")
        looks += 1
    return sorted(known)
