"""How durable an acknowledgement of the brokers is: on how many of them a record is, at least.

With `acks=all`, which all our producers request, a leader acknowledges once all replicas that are
in sync have the record, and refuses where those are fewer than `min.insync.replicas`. A replica may
become in sync or out of sync at any moment, so only the latter is certain.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orderchain.clients.kafka import (
    DRIVER_ERRORS,
    TopicDescription,
    close_client,
    connect_refusal,
    connecting,
    describe_topics,
    make_admin,
    start_client,
)
from orderchain.clients.kafka_config import KafkaConfig
from orderchain.errors import OrderchainError
from orderchain.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_log = logging.getLogger(__name__)

_MINIMUM: Final = "min.insync.replicas"

LOOK_SECONDS: Final = 10.0
"""Deadline of one look. The work does not wait for it, and a broker that is away is asked later."""

AGAIN_SECONDS: Final = 60.0
"""The pause between two looks at topics that were not seen: made later, or the broker was away."""

_CLOSE_SECONDS: Final = 2.0

_TOPICS_SHOWN: Final = 5
"""How many topics a warning names; the rest is counted."""


def certain_copies(topic: TopicDescription) -> int:
    """Return how many brokers certainly hold an acknowledged record; 0: none is acknowledged."""
    minimum = int(topic.settings.get(_MINIMUM) or 1)
    return minimum if minimum <= topic.replicas else 0


def durability_warning(topics: Iterable[TopicDescription], loss: str) -> str | None:
    """Return one line with the topics whose records one lost disk can take; None if there are none.

    `loss` says what happens to such a record.
    """
    single = [topic for topic in topics if topic.is_there and certain_copies(topic) < 2]
    if not single:
        return None
    shown = ", ".join(
        f"{topic.name} (replicas {topic.replicas}, {_MINIMUM} {topic.settings.get(_MINIMUM, '?')})"
        for topic in single[:_TOPICS_SHOWN]
    )
    more = f" and {len(single) - _TOPICS_SHOWN} more" if len(single) > _TOPICS_SHOWN else ""
    return (
        f"kafka: one broker's disk may be all that holds what is acknowledged on {shown}{more}: "
        f"{loss} ({_MINIMUM}=2 with 3 replicas outlives a broker)"
    )


class TopicDurability:
    """Looks once at each topic that a process writes to, and logs a warning where it must.

    It never raises, and never blocks the work: the brokers may be away, or may not allow it.
    """

    def __init__(self, kafka: KafkaConfig | str, role: str, loss: str) -> None:
        """`loss`: as of `durability_warning`; `role` names the client to the brokers."""
        self._config = KafkaConfig.of(kafka)
        self._role = role
        self._loss = loss
        self._looked_at: set[str] = set()
        self._refusal = ""

    async def keep_looking(
        self, topics: Callable[[], Collection[str]], changed: asyncio.Event | None = None
    ) -> None:
        """Look at all topics that `topics` returns, repeatedly; never returns.

        When all were looked at, the next look is when `changed` is set. Otherwise, or without
        `changed`, it is a minute later.
        """
        while True:
            if changed is not None:
                changed.clear()
            if await self.look(topics()) and changed is not None:
                await changed.wait()
            else:
                await asyncio.sleep(AGAIN_SECONDS)

    async def look(self, topics: Collection[str]) -> bool:
        """Look at those not yet looked at; return whether all have been looked at by now."""
        wanted = sorted(set(topics) - self._looked_at)
        if not wanted:
            return True
        try:
            described = await self._described(wanted)
        except OrderchainError as error:
            if self._refusal != (reason := reason_of(error)):
                _log.info("topics could not be looked at: %s", reason)
                self._refusal = reason
            return False
        found = [topic for topic in described.values() if topic.is_there]
        self._looked_at |= {topic.name for topic in found}
        if warning := durability_warning(found, self._loss):
            _log.warning("%s", warning)
        return len(found) == len(wanted)

    async def _described(self, names: Collection[str]) -> dict[str, TopicDescription]:
        config = self._config
        admin = make_admin(config, self._role, request_timeout_ms=int(LOOK_SECONDS * 1_000))
        try:
            async with connecting(config, LOOK_SECONDS):
                await start_client(admin)
                return await describe_topics(admin, config, names)
        except DRIVER_ERRORS as error:
            raise connect_refusal(error, config) from error
        finally:
            await close_client(admin, _CLOSE_SECONDS)
