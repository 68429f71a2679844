"""Where a topic begins and ends."""

from __future__ import annotations

from msgspec import Struct


class Bounds(Struct, frozen=True, kw_only=True):
    """The offsets of a partition: records from `first` on, below `end`."""

    first: int
    """Above 0 when retention has removed what stood before."""
    end: int
