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
        self._known_head = delivered_id  # never falls
        self._told: tuple[int, int] | None = None  # by a frame alone: id, since when

    @property
    def head_seen(self) -> int:
        """The highest id known to be committed, or told of by a frame that is not refuted yet."""
        return self._known_head if self._told is None else max(self._known_head, self._told[0])

    @property
    def ids(self) -> int:
        """How many ids lie between the two; ids skip, so rows may be fewer."""
        return self.head_seen - self._delivered_id

    @property
    def seconds(self) -> float:
        """For how long rows have been known that are not delivered yet; 0 when all are."""
        since = [sight[1] for sight in (*list(self._sights)[:1], self._told) if sight is not None]
        return (self._clock.monotonic_ns() - min(since)) / SECOND_NS if since else 0.0

    def suspect(self, head_id: int) -> None:
        """Note that a frame tells of `head_id`, which the database has not been asked for."""
        self._told = (head_id, self._clock.monotonic_ns())

    def dismiss(self) -> None:
        """Forget what a frame told of: it is not so."""
        self._told = None

    def see(self, head_id: int) -> None:
        """Note that the chain goes up to `head_id` at least."""
        if head_id <= self._known_head:
            return
        self._known_head = head_id
        if len(self._sights) >= SIGHTS_MAX:
            # Every second one goes: what lies between two sights counts as seen at the first.
            kept = list(self._sights)[1::2]
            since = list(self._sights)[::2]
            self._sights = deque((at[0], was[1]) for at, was in zip(kept, since, strict=True))
        self._sights.append((head_id, self._clock.monotonic_ns()))

    def deliver(self, delivered_id: int) -> None:
        """Note that everything up to `delivered_id` was handed on."""
        self._delivered_id = delivered_id
        self._known_head = max(self._known_head, delivered_id)
        if self._told is not None and self._told[0] <= delivered_id:
            self._told = None
        while self._sights and self._sights[0][0] <= delivered_id:
            self._sights.popleft()
