"""The gap ledger: what was missing, why, from where it came, and how long it took."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct

from matcher_receiver.decisions import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator


class Gap(Struct, frozen=True, kw_only=True):
    """Rows that did not come by Kafka, and were read from the database."""

    chain_id: int
    after_id: int
    """The last row that was delivered before; exclusive."""
    until_id: int
    """The last row that was missing; inclusive."""
    cause: Cause
    """What showed it: a later frame, a heartbeat, or a look at the database's head."""
    source: str
    """`primary` or `standby`."""
    rows: int
    found_at_ns: int
    """Wall clock, nanoseconds since 1970 UTC. Orders nothing."""
    duration_ns: int
    """From finding it to having read its last row; the caller's own time between is in it."""


class GapLedger:
    """The last gaps, oldest first; bounded, the oldest are forgotten."""

    def __init__(self, kept: int) -> None:
        self._gaps: deque[Gap] = deque(maxlen=kept)
        self.count = 0
        """Gaps ever filled, those that were forgotten among them."""

    def add(self, gap: Gap) -> None:
        """Append `gap`."""
        self.count += 1
        self._gaps.append(gap)

    def __len__(self) -> int:
        return len(self._gaps)

    def __iter__(self) -> Iterator[Gap]:
        return iter(tuple(self._gaps))
