"""A run: linked rows handed to the caller at once, and the unit of a checkpoint."""

from __future__ import annotations

from msgspec import Struct

from orderchain.event import Event
from orderchain.mark import Mark


class Run(Struct, frozen=True, kw_only=True):
    """Linked, committed rows of one chain, from a frame or from a page of a fill. Never empty."""

    chain_id: int
    events: list[Event]
    """Rows in the order of the chain, each linked to the one before."""
    end: Mark
    """The place behind the last row."""
    source: str = ""
    """`primary` or `standby`: the kind of server that it was read from; empty for a frame, and
    where a source does not say."""

    @property
    def first_pid(self) -> int:
        """Id of the row before the run: where a checkpoint must stand for the run to be next."""
        return self.events[0].pid

    @property
    def last_id(self) -> int:
        """Id of the last row."""
        return self.end.id
