"""Paces the workers of a consumer: they wait for work, for the database, or until they stop."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orderchain.clock import Backoff
from orderchain.monitoring import Metric
from orderchain.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

PAUSE_SECONDS_MIN: Final = 0.05
"""Pause after the first interruption: a broken connection is most often back at once."""

PAUSE_SECONDS_MAX: Final = 2.0
"""Longest pause while a database stays away: how late its return may be noticed."""


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


class Pace:
    """When the workers of one consumer go on."""

    def __init__(self, busy_seconds: float, stats: ConsumerStats) -> None:
        """`busy_seconds`: how long a message that another worker has is left alone."""
        self.is_stopping = False
        self._busy_seconds = busy_seconds
        self._stats = stats
        self._changed = asyncio.Event()  # set when there may be work, or room, or the end
        self._paused_until = 0.0  # by the loop's clock: nothing is begun before it
        self._pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)

    @property
    def pause_seconds(self) -> float:
        """How long nothing may be begun; 0 or less if work may go on."""
        return self._paused_until - asyncio.get_running_loop().time()

    def wake(self) -> None:
        """End every `wait`: there may be work, or room, or the end."""
        self._changed.set()

    def stop(self) -> None:
        """Begin nothing more."""
        self.is_stopping = True
        self.wake()

    async def wait(self, seconds: float) -> None:
        """Wait until there may be something to do, or until `seconds` have passed."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self._changed.wait()

    def leave_alone(self, take_back: Callable[[], None]) -> None:
        """Call `take_back` later: another worker has a message, and is given time."""
        self._stats.waits += 1
        asyncio.get_running_loop().call_later(self._busy_seconds, take_back)

    def interrupted(self, error: BaseException) -> None:
        """Begin nothing for a while: the database is away, or in trouble. Longer each time."""
        kind, reason = type(error).__name__, reason_of(error)
        _log.warning("work was broken off, and is done again: %s: %s", kind, reason)
        self._stats.interruptions += 1
        pause = self._pauses.next_seconds()
        self._paused_until = asyncio.get_running_loop().time() + pause

    def worked(self) -> None:
        """Record that the database is there."""
        self._pauses.reset()
