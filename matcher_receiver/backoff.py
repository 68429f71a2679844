"""Pauses between tries: growing, bounded, and jittered so that receivers do not march in step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

FIRST_SECONDS: Final = 0.05
"""The first pause: a connection that broke is most often back at once."""


class Backoff:
    """The pauses of one failing call; doubled from `FIRST_SECONDS` up to `seconds_max`."""

    def __init__(self, seconds_max: float, random: Random) -> None:
        self._seconds_max = seconds_max
        self._random = random
        self._tries = 0

    def next_seconds(self) -> float:
        """Return how long to wait now: between half and the whole of the step."""
        step = min(self._seconds_max, FIRST_SECONDS * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return step * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin anew: the call has succeeded."""
        self._tries = 0
