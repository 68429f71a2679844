"""Between which ids a chain is looked at; both ends come from outside the data."""

from __future__ import annotations

from msgspec import Struct


class Horizon(Struct, frozen=True, kw_only=True):
    """The part of a chain that a verification speaks of."""

    chain_id: int
    start: int
    """The id before the first row."""
    head: int | None
    """The id of the last row; None when nobody but the data could tell."""

    def within(self, other: Horizon) -> Horizon:
        """Return what lies within both."""
        heads = [head for head in (self.head, other.head) if head is not None]
        start = max(self.start, other.start)
        return Horizon(chain_id=self.chain_id, start=start, head=min(heads, default=None))
