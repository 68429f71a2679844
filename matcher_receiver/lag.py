"""How far a receiver is behind what it knows to be committed, in ids and in seconds."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from matcher_receiver.waits import SECOND_NS

if TYPE_CHECKING:
    from orderchain.clock import Clock

SIGHTS_MAX: Final = 256
"""Sights of the head kept while behind; each tells since when an id has been known."""


class Lag:
    """What was seen of the head, and when, as far as it is not delivered yet."""

    def __init__(self, clock: Clock, delivered_id: int) -> None:
        self._clock = clock
        self._delivered_id = delivered_id
        self._sights: deque[tuple[int, int]] = deque()  # id, first known at; both rise
        self.head_seen = delivered_id
        """The highest id known to be committed. Never falls."""

    @property
    def ids(self) -> int:
        """How many ids lie between the two; ids skip, so rows may be fewer."""
        return self.head_seen - self._delivered_id

    @property
    def seconds(self) -> float:
        """For how long rows have been known that are not delivered yet; 0 when all are."""
        if not self._sights:
            return 0.0
        return (self._clock.monotonic_ns() - self._sights[0][1]) / SECOND_NS

    def see(self, head_id: int) -> None:
        """Note that the chain goes up to `head_id` at least."""
        if head_id <= self.head_seen:
            return
        self.head_seen = head_id
        if len(self._sights) >= SIGHTS_MAX:
            # Every second one goes: what lies between two sights counts as seen at the first.
            kept = list(self._sights)[1::2]
            since = list(self._sights)[::2]
            self._sights = deque((at[0], was[1]) for at, was in zip(kept, since, strict=True))
        self._sights.append((head_id, self._clock.monotonic_ns()))

    def deliver(self, delivered_id: int) -> None:
        """Note that everything up to `delivered_id` was handed on."""
        self._delivered_id = delivered_id
        self.head_seen = max(self.head_seen, delivered_id)
        while self._sights and self._sights[0][0] <= delivered_id:
            self._sights.popleft()
