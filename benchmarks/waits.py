"""Waits of the orders of a schedule, each from when it was due. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

_GRID_NS: Final = 10_000_000
_GROWTH_MAX: Final = 0.01
"""By so much of the orders that fall due in a quarter of the schedule, a queue may be longer than
in the quarter before: a rate of more than one hundredth above what is sustained shows."""
_GROWTH_SECONDS: Final = 0.02
"""And at least by what falls due in this time: in a short run, queues of a few batches differ."""


class Schedule(Struct, frozen=True):
    """Due times of orders, at a constant rate."""

    start_ns: int
    rate_per_second: float
    orders: int
    warm_up_orders: int = 0
    """The first ones, which are sent like all others, but not counted."""

    def due_ns(self) -> Numbers:
        """Return when each order falls due."""
        return self.start_ns + (np.arange(self.orders) * (1e9 / self.rate_per_second)).astype(
            np.int64
        )

    def waits_ns(self, done_ns: Numbers) -> Numbers:
        """Return how long each order waited that counts, given when each was done."""
        return (done_ns - self.due_ns())[self.warm_up_orders :]

    def undisturbed(self, done_ns: Numbers, stalls: Sequence[tuple[int, int]]) -> Numbers:
        """Return the waits of those orders that no stall of the disk concerned.

        A stall concerns what was waiting while it lasted, and for as long again: the queue that it
        made is worked off then.
        """
        due_ns, done_ns = self.due_ns()[self.warm_up_orders :], done_ns[self.warm_up_orders :]
        is_free = np.ones(len(due_ns), dtype=bool)
        for began_ns, ended_ns in stalls:
            until_ns = ended_ns + (ended_ns - began_ns)
            is_free &= (due_ns > until_ns) | (done_ns < began_ns)
        waits: Numbers = (done_ns - due_ns)[is_free]
        return waits

    def queue_grows(self, done_ns: Numbers) -> bool:
        """Return whether more orders wait in the last quarter of the schedule than in the third.

        Each is the median of the quarter: a stall that is worked off is no growth. What `done_ns`
        says never falls.
        """
        span_ns = self.orders / self.rate_per_second * 1e9
        third, last = (
            float(np.median(self._waiting(done_ns, span_ns * begin, span_ns * (begin + 0.25))))
            for begin in (0.5, 0.75)
        )
        at_most = max(self.orders / 4 * _GROWTH_MAX, self.rate_per_second * _GROWTH_SECONDS)
        return last - third > at_most

    def _waiting(self, done_ns: Numbers, begin_ns: float, end_ns: float) -> Numbers:
        """Return how many orders wait, every 10 ms from a time after the start to another."""
        at_ns = np.arange(begin_ns, end_ns, _GRID_NS)
        due = np.minimum(at_ns * self.rate_per_second / 1e9 + 1, self.orders).astype(np.int64)
        done = np.searchsorted(done_ns, at_ns + self.start_ns, side="right")
        return due - done


def spread_out(samples: Sequence[tuple[int, int]]) -> Numbers:
    """Return when each order was done, from times, each with the orders that were done by then."""
    at_ns, rows = np.array(samples, dtype=np.int64).reshape(-1, 2).T
    return np.repeat(at_ns, np.diff(rows, prepend=0))
