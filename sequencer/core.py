"""The pure core: gives orders their ids and previous ids, by a plausible clock. No I/O.

Ids only rise; how they rise is a choice.

`sequential` rises by one, except for ids skipped at a take-over and at the end of a partition.
`time` begins every batch within the wall clock's millisecond, so that an id shows when its row was
sequenced, and a chain's partitions are spans of time. No clock decides the order: if it stops or
steps back, ids continue to rise by one until it has caught up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Literal

from chain_kernel.errors import ClockError, OrderchainError, SettingError
from chain_kernel.limits import ID_MAX
from chain_kernel.model import TERM_SPREAD_IDS
from chain_kernel.seal import Batch, Columns, column_pages, next_seal
from sequencer.order import OrderColumns, columns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.model import Term
    from sequencer.order import Order


_log = logging.getLogger(__name__)

_DAY_NS: Final = 24 * 3600 * 10**9

_WARNED_AHEAD_NS: Final = _DAY_NS
"""Beyond this no time zone explains the difference."""

_AHEAD_NS_MAX: Final = 365 * _DAY_NS
"""Beyond this the chain's times would be useless for years."""

_WALL_NS_MAX: Final = 2**63 - 1
"""A bigint: no row can hold a later time."""

_EXPECTED: Final = "at most 365 days (the chain's times, and time ids, would stay there forever)"


class ClockWatch:
    """Compares the wall clock with the database's, and with one that cannot jump.

    A wrong clock marks a chain permanently: `committed_at` never falls along a chain, and ids of
    the strategy "time" never fall at all. Both stay where a clock that ran ahead has put them,
    however soon it is corrected. So a clock that is years ahead stamps nothing. A clock that is
    behind does no such harm.

    It works on values only; the caller passes the times. It warns once, and again if the clock was
    right in between.
    """

    def __init__(self) -> None:
        self._base_ns: int | None = None
        self._has_warned = False

    def check_beside(self, wall_ns: int, database_us: int) -> None:
        """Raise ClockError if it is years ahead of the database's clock; warn above a day."""
        self.warn_beside(wall_ns, database_us)
        _refuse(wall_ns - database_us * 1_000, "of the database's")

    def warn_beside(self, wall_ns: int, database_us: int) -> None:
        """Warn if it is over a day ahead of the database's clock: one of the two is wrong."""
        ahead_ns = wall_ns - database_us * 1_000
        if ahead_ns <= _WARNED_AHEAD_NS:
            self._has_warned = False
        elif not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the clock of this machine is %d days ahead of the database's: the chain's times "
                "stay where it puts them",
                ahead_ns // _DAY_NS,
            )

    def check_jump(self, wall_ns: int, monotonic_ns: int) -> None:
        """Raise ClockError if it has jumped years ahead since the first call, or if no row can
        hold its time. Call it before each batch is stamped.
        """
        if self._base_ns is None:
            self._base_ns = wall_ns - monotonic_ns
        _refuse(wall_ns - monotonic_ns - self._base_ns, "of where it was")
        if not 0 <= wall_ns <= _WALL_NS_MAX:
            raise ClockError("clock", f"{wall_ns} ns since 1970", f"0 to {_WALL_NS_MAX}")


def _refuse(ahead_ns: int, what: str) -> None:
    if ahead_ns > _AHEAD_NS_MAX:
        raise ClockError("clock", f"{ahead_ns // _DAY_NS} days ahead {what}", _EXPECTED)


IdStrategy = Literal["sequential", "time"]

TIME_ID_BITS: Final = 20
"""Ids per millisecond, 2^20: a thousand times the highest rate ever seen on one chain, so ids do
not run ahead of the clock. That leaves 43 bits for milliseconds: until the year 2248."""

DAY_IDS: Final = 86_400_000 << TIME_ID_BITS
"""Ids per day: the value of `chainctl chain create --partition-ids` for one partition per day."""

TIME_PARTITION_IDS_MIN: Final = 3_600_000 << TIME_ID_BITS
"""One hour. With the default partition of 10 million ids, time-based ids would need a new table
every ten milliseconds."""


IDS_PER_SECOND: Final = TERM_SPREAD_IDS
"""Ids that a take-over skips for each second since the last commit: a thousand times the highest
rate ever seen on one chain. So a life that takes over later begins above all ids that another life
from the same head has given out since. A chain's ids reach half of all possible ids in the year
2262 at the earliest, however often it is taken over."""

_TIME_SALT_MASK: Final = 2 ** (TIME_ID_BITS - 1) - 1
"""Half the ids of a millisecond: each term begins its batches at its own offset in it."""

SEEN_AHEAD_MAX: Final = 2**40
"""The distance above its own ids up to which a leader follows frames that its database does not
know. An honest life can be ahead by the difference of the clocks; this is half an hour of
sequential ids, and a quarter of time-based ones. Using up all ids with forged frames takes eight
million take-overs."""


def check_partition_ids(strategy: IdStrategy, partition_ids: int) -> None:
    """Raise SettingError if the chain's partitions are too small for `strategy`."""
    if strategy == "time" and partition_ids < TIME_PARTITION_IDS_MIN:
        raise SettingError(
            "id_strategy",
            strategy,
            f"a chain with at least {TIME_PARTITION_IDS_MIN} ids a partition (this one has "
            f"{partition_ids}; chainctl chain create --partition-ids {DAY_IDS} is a day)",
        )


def least_id_of_term(
    strategy: IdStrategy, term: Term, *, takeover_skip_ids: int, wall_ns: int
) -> int:
    """Return the least id of the first batch of `term`, at the wall clock's `wall_ns`.

    Ids that another life of the chain has given out since the head of `term`, and has lost with its
    primary, must not be given out again. So this skips `takeover_skip_ids` for what was in flight,
    IDS_PER_SECOND for the time since the last commit, and the term's own spread in case clocks
    fail. Time-based ids contain the time themselves, and the spread within the millisecond too: so
    they run ahead of the clock by half a second at most. Ids that frames show beyond that are
    skipped too. The chain's very first leader begins at 1; with `takeover_skip_ids` 0 only ids that
    frames show are skipped.
    """
    spread = term.spread if takeover_skip_ids else 0
    least = term.last_id + 1
    if term.last_id or term.epoch > 1:
        least += takeover_skip_ids + spread
        if takeover_skip_ids and strategy == "sequential":
            least += _ids_since(term, wall_ns)
    if least > ID_MAX - 4 * term.partition_ids:
        least = term.last_id + 1 + takeover_skip_ids
    planned = max(least, _time_id(term, wall_ns)) if strategy == "time" else least
    if planned <= term.seen_id <= planned + SEEN_AHEAD_MAX:
        least = term.seen_id + 1 + takeover_skip_ids + spread
    return least


def _ids_since(term: Term, wall_ns: int) -> int:
    """Return how many ids to skip for the time since the last commit before `term`."""
    if not term.last_committed_at_us:
        return 0
    elapsed_us = max(0, wall_ns // 1_000 - term.last_committed_at_us)
    return elapsed_us * IDS_PER_SECOND // 1_000_000


def _time_id(term: Term, wall_ns: int) -> int:
    """Return where time-based ids of `term` begin in the millisecond of `wall_ns`."""
    return (wall_ns // 1_000_000 << TIME_ID_BITS) + (term.spread & _TIME_SALT_MASK)


def first_id(
    strategy: IdStrategy, *, term: Term, least_id: int, wall_ns: int, row_count: int
) -> int:
    """Return the id of the first of `row_count` rows, at least `least_id`.

    The ids of a batch are consecutive; if they would span two partitions, they move past the bound.
    A clock beyond what ids can hold is not followed.
    """
    partition_ids = term.partition_ids
    first = least_id
    if strategy == "time":
        time_id = _time_id(term, wall_ns)
        if least_id < time_id <= ID_MAX - 4 * partition_ids:
            first = time_id
    if first // partition_ids != (first + row_count - 1) // partition_ids:
        first = (first // partition_ids + 1) * partition_ids
    return first


class SequencerCore:
    """The chain's head once every batch assembled so far is committed.

    A batch is assembled while the one before it commits. If that one fails, a new core begins where
    the new term found the chain, and the later orders are assembled again: only a commit ever
    gives an id.
    """

    def __init__(
        self, term: Term, *, takeover_skip_ids: int, id_strategy: IdStrategy = "sequential"
    ) -> None:
        check_partition_ids(id_strategy, term.partition_ids)
        self._term = term
        self._id_strategy = id_strategy
        # Invariant: the seal is the one after the batch that ends at last_id; none of the three
        # ever falls.
        self._last_id = term.last_id
        self._last_seal = term.last_seal
        self._last_committed_at_us = term.last_committed_at_us
        self._takeover_skip_ids = takeover_skip_ids

    def assemble(self, orders: OrderColumns | Sequence[Order], wall_ns: int) -> Batch:
        """Return the batch of `orders`, in their order, after all that was assembled before.

        `wall_ns` is the wall clock: it stamps the batch and the orders without a time, and may
        cause ids to be skipped; it orders nothing. Raises OrderchainError when the chain has no ids
        left.
        """
        given = orders if isinstance(orders, OrderColumns) else columns_of(orders)
        first = self._first_id(len(orders), wall_ns)
        last_id = first + len(orders) - 1
        if last_id >= ID_MAX:
            raise OrderchainError(f"chain {self._term.chain_id} has no ids left")
        ids = range(first, last_id + 1)
        pids = (self._last_id, *ids[:-1])
        columns = Columns(ids, pids, given.keys, given.times_at(wall_ns), given.payloads)
        pages = column_pages(columns, is_linked=True)
        # A clock that steps back must not make committed_at fall along the chain.
        committed_at_us = max(wall_ns // 1_000, self._last_committed_at_us)
        seal = next_seal(
            self._last_seal,
            epoch=self._term.epoch,
            first_id=first,
            last_id=last_id,
            row_count=len(ids),
            committed_at_us=committed_at_us,
            pages=pages,
        )
        batch = Batch(
            chain_id=self._term.chain_id,
            epoch=self._term.epoch,
            pid=self._last_id,
            first_id=first,
            last_id=last_id,
            seal_before=self._last_seal,
            seal=seal,
            committed_at_us=committed_at_us,
            columns=columns,
            pages=pages,
        )
        self._last_id, self._last_seal = last_id, seal
        self._last_committed_at_us = committed_at_us
        return batch

    def _first_id(self, row_count: int, wall_ns: int) -> int:
        least_id = self._last_id + 1
        if self._last_id == self._term.last_id:
            least_id = least_id_of_term(
                self._id_strategy,
                self._term,
                takeover_skip_ids=self._takeover_skip_ids,
                wall_ns=wall_ns,
            )
        return first_id(
            self._id_strategy,
            term=self._term,
            least_id=least_id,
            wall_ns=wall_ns,
            row_count=row_count,
        )
