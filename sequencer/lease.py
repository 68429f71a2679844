"""The lease: how a leader says that it lives, and how a standby sees that it does not.

It decides only who tries. Two processes that both believe to lead harm nothing: the fence in
`chain_head` lets one of them commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orderchain.clients.durability import check_durability
from orderchain.clock import SystemClock
from orderchain.errors import Fenced
from orderchain.sql import load_sql
from sequencer.clock_check import ClockWatch
from sequencer.sessions import side_session

if TYPE_CHECKING:
    from orderchain.batch import LeaseSight, Term
    from orderchain.clients.postgres import Record
    from orderchain.clock import Clock
    from sequencer.config import SequencerConfig

_SQL: Final = load_sql("sequencer", "queries.sql")


class LeaseWatch:
    """Tells a standby when the leader's counter has stood still for the time of a lease.

    Measured on the standby's own monotonic clock from the first time it saw the counter: no wall
    clock, of no machine, decides. A pure value machine; the caller brings the time.
    """

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._seen: LeaseSight | None = None
        self._since_ns = 0
        self.is_led = False
        """Whether the counter was seen to move: a leader lives."""

    @property
    def has_looked(self) -> bool:
        """Whether anything was ever seen."""
        return self._seen is not None

    def may_take_over(self, sight: LeaseSight, now_ns: int) -> bool:
        """Say whether the chain may be taken over, given what was seen at `now_ns`."""
        if sight.released:
            return True
        if sight != self._seen:
            self.is_led = self.has_looked
            self._seen, self._since_ns = sight, now_ns
            return False
        return now_ns - self._since_ns >= self._lease_ns


class PostgresLease:
    """The leader's row of `chain_lease`; implements `orderchain.ports.Lease`.

    On a connection of its own: the other one may be busy with a commit for longer than a lease.
    """

    def __init__(self, config: SequencerConfig, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._clock_watch = ClockWatch()
        self._must_be_safe = not config.unsafe_durability
        # Losing the last beat in a crash costs nothing: do not wait for the disk.
        self._session = side_session(config, "lease", synchronous_commit="off")

    async def renew(self, term: Term) -> None:
        """Raise the counter; see `orderchain.ports.Lease.renew`."""
        found = await self._move("renew_lease", term)
        if self._must_be_safe:
            check_durability(dict(found))
        # No more than a warning: it may be the database's clock that has jumped.
        self._clock_watch.warn_beside(self._clock.wall_ns(), found["now_us"])

    async def release(self, term: Term) -> None:
        """Hand over; see `orderchain.ports.Lease.release`."""
        await self._move("release_lease", term)

    async def close(self) -> None:
        """Close the connection; see `orderchain.ports.Lease.close`."""
        await self._session.close()

    async def _move(self, statement: str, term: Term) -> Record:
        moved = await self._session.fetch(_SQL[statement], term.chain_id, term.epoch)
        if not moved:
            raise Fenced(term.chain_id, term.epoch)
        row: Record = moved[0]
        return row
