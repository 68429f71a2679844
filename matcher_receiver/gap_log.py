"""The gap ledger in memory: the last gaps, and how many there ever were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orderchain.model import Gap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orderchain.clock import Clock
    from orderchain.errors import RowsArchived
    from orderchain.model import Cause


class GapLedger:
    """The last gaps, oldest first; bounded: the oldest are dropped.

    A gap that could not be filled is in it too, once, however often that was tried. So is a gap
    that is being filled, or was being filled when the receiver ended.
    """

    def __init__(self, kept: int, record: Callable[[Gap], None] | None = None) -> None:
        self._kept = kept
        self._gaps: dict[int, Gap] = {}  # by place; the last entry of a place counts
        self._record = record
        self.count = 0
        """Gaps ever filled, including those that were dropped."""

    def add(self, gap: Gap) -> None:
        """Append `gap`; it replaces an earlier entry for the same place."""
        if gap.outcome == "filled":
            self.count += 1
        self._gaps.pop(gap.after_id, None)
        self._gaps[gap.after_id] = gap
        if len(self._gaps) > self._kept:
            del self._gaps[next(iter(self._gaps))]
        if self._record is not None:
            self._record(gap)

    def __len__(self) -> int:
        return len(self._gaps)

    def __iter__(self) -> Iterator[Gap]:
        return iter(tuple(self._gaps.values()))


def archived_gap(error: RowsArchived, after_id: int, cause: Cause, clock: Clock) -> Gap:
    """Return the entry for a place, not a fill, that was found before the archive's boundary."""
    return Gap(
        chain_id=error.chain_id,
        after_id=after_id,
        until_id=error.until_id,
        cause=cause,
        source="primary",
        rows=0,
        found_at_ns=clock.wall_ns(),
        duration_ns=0,
        outcome="archived",
    )
