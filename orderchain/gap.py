"""An entry of the gap ledger: what was missing, why, from where it came, and how long it took."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Cause = Literal["start", "frame", "heartbeat", "poll"]
"""What showed that rows are missing."""

Outcome = Literal["filled", "missing", "archived", "not yet readable", "interrupted", "open"]
"""What became of a gap. Only the first ends it. At the next three a receiver stands before it. At
`interrupted` the receiver ended first: the next one reads on from its checkpoint. `open` is being
filled."""


class Gap(Struct, frozen=True, kw_only=True):
    """Rows that did not come by Kafka, and were looked for in the database."""

    chain_id: int
    after_id: int
    """The last row that was delivered before; exclusive."""
    until_id: int
    """The last row that was missing; inclusive."""
    cause: Cause
    """What showed it: a later frame, a heartbeat, or a look at the database's head."""
    source: str
    """`primary` or `standby`: which kind of server gave the last of its rows, or refused them."""
    rows: int
    """Rows read. None are when they could not be."""
    found_at_ns: int
    """Wall clock, nanoseconds since 1970 UTC. Orders nothing."""
    duration_ns: int
    """From seeing it to having read its last row, or having given up; the caller's own time
    between is in it, and so is that of a database that was away. Of an open one: so far."""
    outcome: Outcome = "filled"
