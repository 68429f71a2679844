"""The gap ledger in memory: the last gaps, and how many there ever were."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orderchain.gap import Gap


class GapLedger:
    """The last gaps, oldest first; bounded, the oldest are forgotten.

    A gap that could not be filled stands in it too, once, however often that was tried.
    """

    def __init__(self, kept: int, record: Callable[[Gap], None] | None = None) -> None:
        self._gaps: deque[Gap] = deque(maxlen=kept)
        self._record = record
        self.count = 0
        """Gaps ever filled, those that were forgotten among them."""

    def add(self, gap: Gap) -> None:
        """Append `gap`, or let it take the place of the last one, if that is of the same place."""
        if gap.outcome == "filled":
            self.count += 1
        if self._gaps and self._gaps[-1].after_id == gap.after_id:
            self._gaps.pop()
        self._gaps.append(gap)
        if self._record is not None:
            self._record(gap)

    def __len__(self) -> int:
        return len(self._gaps)

    def __iter__(self) -> Iterator[Gap]:
        return iter(tuple(self._gaps))
