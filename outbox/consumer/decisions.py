"""Decisions on a received message: work, a retry, or something else. No I/O.

A fast filter is asked first, then the database. The filter is believed in one case only: when it
says that the message was applied. In all other cases the database decides. So a filter that has
lost its memory, or is down, costs database work and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from msgspec import Meta

from chain_kernel.config import Config
from outbox.destination import Seconds


class Seen(Enum):
    """The answer of a fast filter about a message id."""

    NEW = "new"
    """The filter did not know the id; it does now, as being worked on."""
    WORKING = "working"
    """Some worker took it, and has neither finished nor failed. That worker may be dead."""
    DONE = "done"
    """It was applied, and the transaction of its effect has committed."""


class InboxDecision(Enum):
    """The decision on a message."""

    WORK = "work"
    """It is new: its id is in our transaction, which the effect joins."""
    DONE = "done"
    """It was applied before: no work, but its confirm is sent again."""
    WAIT = "wait"
    """Another worker is on it: not done, and not ours. Look again later."""
    PARKED = "parked"
    """It has failed, and is parked for a retry: no work, and the sender is informed until when."""
    KEY_PARKED = "key parked"
    """An earlier message of its key is parked: park it after that one."""
    TOO_OLD = "too old"
    """The inbox no longer knows what was applied so long ago: a person must look."""
    DEAD = "dead"
    """It is a dead letter, or was abandoned: no work, no confirm."""


@dataclass(frozen=True)
class StoredDelivery:
    """The database's knowledge of a message that could not be claimed."""

    is_applied: bool = False
    is_parked: bool = False
    is_dead: bool = False
    is_key_parked: bool = False
    is_below_horizon: bool = False


def by_filter(seen: Seen, *, looked_before: bool) -> InboxDecision | None:
    """Return what the filter settles; None if the database must decide.

    A worker that has the message is given time once. After that the database is asked, since the
    mark may come from a process that was killed.
    """
    if seen is Seen.DONE:
        return InboxDecision.DONE
    if seen is Seen.WORKING and not looked_before:
        return InboxDecision.WAIT
    return None


def by_database(*, is_claimed: bool, stored: StoredDelivery) -> InboxDecision:
    """Return what the database settles. `stored` counts only for what could not be claimed."""
    if is_claimed:
        return InboxDecision.WORK
    if stored.is_applied:  # first of all: what was applied stays so, however old
        return InboxDecision.DONE
    if stored.is_dead:
        return InboxDecision.DEAD
    if stored.is_parked:
        return InboxDecision.PARKED
    if stored.is_below_horizon:
        return InboxDecision.TOO_OLD
    if stored.is_key_parked:
        return InboxDecision.KEY_PARKED
    # The obstacle has gone between the two statements, such as by a retry that succeeded.
    return InboxDecision.WAIT


LEVELS_SECONDS: Final = (
    10.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 420.0, 480.0, 540.0, 600.0,
    1_200.0, 1_800.0, 3_600.0, 7_200.0,
)  # fmt: skip
"""10 s, 30 s, then 1 to 10 minutes, 20 and 30 minutes, 1 and 2 hours: 4 h 45 min 40 s in all."""

TRIES_MAX: Final = 16
"""Tries after the first failure, one for each level."""

_NS: Final = 1_000_000_000


class RetryLevels(Config, frozen=True, kw_only=True):
    """The pauses before each new try of a message whose handler has failed."""

    levels_seconds: Annotated[tuple[Seconds, ...], Meta(min_length=1, max_length=100)] = (
        LEVELS_SECONDS
    )
    """The pause after the first failure, the second, ...; the last one holds for all that follow.
    Each is counted from the failure before it."""
    tries_max: Annotated[int, Meta(ge=0, le=10_000)] = TRIES_MAX
    """Retries of a message after it has failed for the first time. 0: none, the first failure makes
    it a dead letter."""


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


def strange_ns(levels: RetryLevels, now_ns: int) -> int:
    """Return from when on a time was set by a clock that was ahead: twice the longest pause.

    Twice, since the clocks of a consumer's processes differ.
    """
    return now_ns + round(2 * max(levels.levels_seconds) * _NS)


def pause_ns(levels: RetryLevels, failures: int) -> int:
    """Return the pause after the failure number `failures` (from 1), in nanoseconds."""
    seconds = levels.levels_seconds[min(failures, len(levels.levels_seconds)) - 1]
    return round(seconds * _NS)
