"""Which id comes next: ids only rise, and how they rise is a choice.

`sequential` rises by one, but for what is left out at a take-over and at the end of a partition.
`time` begins every batch within the wall clock's millisecond, so that an id tells when its row was
sequenced, and a chain's partitions are spans of time. No clock decides the order: where it stands
still or steps back, ids go on rising by one until it has caught up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from orderchain.batch import TERM_SPREAD_IDS
from orderchain.errors import SettingError
from orderchain.limits import ID_MAX

if TYPE_CHECKING:
    from orderchain.batch import Term

IdStrategy = Literal["sequential", "time"]

TIME_ID_BITS: Final = 20
"""Ids of one millisecond, 2^20: a thousand times what one chain was ever seen to take in one, so
ids do not run ahead of the clock. That leaves 43 bits for milliseconds: until the year 2248."""

DAY_IDS: Final = 86_400_000 << TIME_ID_BITS
"""Ids of one day: what to give `chainctl chain create --partition-ids` for a partition a day."""

TIME_PARTITION_IDS_MIN: Final = 3_600_000 << TIME_ID_BITS
"""One hour. With the default partition of 10 million ids, time-based ids would need a new table
every ten milliseconds."""


IDS_PER_SECOND: Final = TERM_SPREAD_IDS
"""Ids that a take-over leaves out for each second since the last commit: a thousand times what one
chain was ever seen to take in. So a life that takes over later begins above all that one that began
at the same head has given out since, and a chain's ids reach half of all there are in the year 2262
at the earliest, however often it is taken over."""

_TIME_SALT_MASK: Final = 2 ** (TIME_ID_BITS - 1) - 1
"""Half the ids of a millisecond: where in it the batches of a term begin is its own."""

SEEN_AHEAD_MAX: Final = 2**40
"""How far above the ids of its own a leader follows frames that its database does not know of. An
honest life can be ahead by what clocks differ, and this is half an hour; it takes four million
take-overs to use all ids up by forging them."""


def check_partition_ids(strategy: IdStrategy, partition_ids: int) -> None:
    """Raise SettingError where the chain's partitions are too small for `strategy`."""
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

    What another life of the chain has given out since the head of `term`, and has lost with its
    primary, is to be given out by nobody else. So `takeover_skip_ids` are left out for what was in
    flight, IDS_PER_SECOND for the time since the last commit, and the term's own spread for where
    clocks fail. Time-based ids hold the time by themselves, and the spread in the millisecond, too:
    so they run ahead of the clock by half a second at most. What frames tell of beyond that is left
    out too. The chain's very first leader begins at 1; with `takeover_skip_ids` 0 nothing is left
    out but what frames tell of.
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
    """Return the ids to leave out for the time since the last commit before `term`."""
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

    The ids of a batch follow each other; where they would straddle a partition, they move behind
    its bound. A clock beyond what ids can tell is not followed.
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


def wall_ms_of(time_id: int) -> int:
    """Return the millisecond since 1970 UTC that a time-based id tells."""
    return time_id >> TIME_ID_BITS
