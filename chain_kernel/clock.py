"""Time: a clock as a port, and the pauses between tries.

Cores receive values, shells ask a clock, simulations bring their own. Pauses grow, are bounded, and
are always jittered.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final, Protocol

from chain_kernel.errors import SettingError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9999, 12, 31, tzinfo=UTC)


def time_of(unix_ns: int) -> datetime:
    """Return a wall-clock time as PostgreSQL keeps it, in microseconds."""
    return _EPOCH + timedelta(microseconds=unix_ns // 1_000)


def record_time(unix_ms: int) -> datetime:
    """Return the time of a record on Kafka. A producer may send any number: one that no time can
    hold becomes the first or the last time.
    """
    try:
        return _EPOCH + timedelta(milliseconds=unix_ms)
    except OverflowError:
        return _FIRST if unix_ms < 0 else _LAST


def ns_of(time: datetime) -> int:
    """Return a time in nanoseconds since 1970 UTC."""
    return (time - _EPOCH) // timedelta(microseconds=1) * 1_000


class Clock(Protocol):
    """Two clocks in one. The wall clock never decides anything about order."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds from an arbitrary start; never falls."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970 UTC; may step either way."""
        ...


class SystemClock:
    """The clocks of this machine: the functions of `time` themselves, at no extra cost."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)


_DOUBLINGS_MAX: Final = 60
"""Every step is at its bound by then; a larger power of two would eventually overflow a float."""

_JITTER: Final = (0.5, 1.0)
"""The share of a step to wait. Many processes that lost the same server come back spread over half
a step, instead of together."""


def step_seconds(first_seconds: float, seconds_max: float, tries: int) -> float:
    """Return the step after `tries` failures in a row, from 0: doubled each time, not jittered.

    For callers that count tries elsewhere, such as in a table. They jitter with `jittered_seconds`.
    """
    doublings = min(max(tries, 0), _DOUBLINGS_MAX)
    return float(min(seconds_max, first_seconds * 2.0**doublings))


def jittered_seconds(step: float, random: Random) -> float:
    """Return a random time between half of `step` and the whole of it."""
    return step * random.uniform(*_JITTER)


class Backoff:
    """The pauses of one call that fails: from `first_seconds`, doubled up to `seconds_max`.

    `is_first_at_once`: the first retry does not wait, since a connection that broke while idle is
    most often back at once. `random`: for simulations, which pass a seeded one. Raises SettingError
    unless 0 < `first_seconds` <= `seconds_max`.
    """

    def __init__(
        self,
        first_seconds: float,
        seconds_max: float,
        *,
        is_first_at_once: bool = False,
        random: Random | None = None,
    ) -> None:
        if not 0 < first_seconds <= seconds_max:
            expected = f"more than 0 and at most {seconds_max}"
            raise SettingError("first_seconds", first_seconds, expected)
        self._first_seconds = first_seconds
        self._seconds_max = seconds_max
        self._is_first_at_once = is_first_at_once
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self._tries = 0

    @property
    def tries(self) -> int:
        """Pauses since the last `reset`."""
        return self._tries

    def next_seconds(self) -> float:
        """Return how long to wait now, and count a try."""
        grown = self._tries - self._is_first_at_once
        self._tries += 1
        if grown < 0:
            return 0.0
        step = step_seconds(self._first_seconds, self._seconds_max, grown)
        return jittered_seconds(step, self._random)

    def reset(self) -> None:
        """Start over: the call has succeeded."""
        self._tries = 0
