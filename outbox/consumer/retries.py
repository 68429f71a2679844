"""When a message whose handler has failed is retried, and how often. Does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from orderchain.config import Config

LEVELS_SECONDS: Final = (
    10.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 420.0, 480.0, 540.0, 600.0,
    1_200.0, 1_800.0, 3_600.0, 7_200.0,
)  # fmt: skip
"""10 s, 30 s, then 1 to 10 minutes, 20 and 30 minutes, 1 and 2 hours: 4 h 45 min 40 s in all."""

TRIES_MAX: Final = 16
"""Tries after the first failure, one for each level."""

_NS: Final = 1_000_000_000

Seconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]


class RetryLevels(Config, frozen=True, kw_only=True):
    """The pauses before each new try of a message whose handler has failed."""

    levels_seconds: Annotated[tuple[Seconds, ...], Meta(min_length=1, max_length=100)] = (
        LEVELS_SECONDS
    )
    """The pause after the first failure, the second, ...; the last one holds for all that follow.
    Each is counted from the failure before it."""
    tries_max: Annotated[int, Meta(ge=0, le=10_000)] = TRIES_MAX
    """How often a message is retried after it has failed for the first time. 0: never, the first
    failure makes it a dead letter."""


@dataclass(frozen=True)
class TryAgain:
    """The message is parked until `due_ns`; `failures` of its handler are counted so far."""

    due_ns: int
    failures: int


@dataclass(frozen=True)
class GiveUp:
    """The message becomes a dead letter; its handler has failed `failures` times."""

    failures: int


def after_failure(levels: RetryLevels, failures_before: int, now_ns: int) -> TryAgain | GiveUp:
    """Return what becomes of a message whose handler fails at `now_ns` (wall clock, ns).

    `failures_before` is how often it had failed before. A handler call that never ended, since its
    process was killed, is no failure.
    """
    failures = failures_before + 1
    if failures > levels.tries_max:
        return GiveUp(failures)
    return TryAgain(now_ns + pause_ns(levels, failures), failures)


def pause_ns(levels: RetryLevels, failures: int) -> int:
    """Return the pause after the failure number `failures` (from 1), in nanoseconds."""
    seconds = levels.levels_seconds[min(failures, len(levels.levels_seconds)) - 1]
    return round(seconds * _NS)
