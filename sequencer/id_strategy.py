"""Which id comes next: ids only rise, and how they rise is a choice.

`sequential` rises by one, but for what is left out at a take-over and at the end of a partition.
`time` begins every batch at the wall clock's millisecond, so that an id tells when its row was
sequenced, and a chain's partitions are spans of time. No clock decides the order: where it stands
still or steps back, ids go on rising by one until it has caught up.
"""

from __future__ import annotations

from typing import Final, Literal

from orderchain.errors import SettingError
from orderchain.limits import ID_MAX

IdStrategy = Literal["sequential", "time"]

TIME_ID_BITS: Final = 20
"""Ids of one millisecond, 2^20: a thousand times what one chain was ever seen to take in one, so
ids do not run ahead of the clock. That leaves 43 bits for milliseconds: until the year 2248."""

DAY_IDS: Final = 86_400_000 << TIME_ID_BITS
"""Ids of one day: what to give `chainctl chain create --partition-ids` for a partition a day."""

TIME_PARTITION_IDS_MIN: Final = 3_600_000 << TIME_ID_BITS
"""One hour. With the default partition of 10 million ids, time-based ids would need a new table
every ten milliseconds."""


def check_partition_ids(strategy: IdStrategy, partition_ids: int) -> None:
    """Raise SettingError where the chain's partitions are too small for `strategy`."""
    if strategy == "time" and partition_ids < TIME_PARTITION_IDS_MIN:
        raise SettingError(
            "id_strategy",
            strategy,
            f"a chain with at least {TIME_PARTITION_IDS_MIN} ids a partition (this one has "
            f"{partition_ids}; chainctl chain create --partition-ids {DAY_IDS} is a day)",
        )


def first_id(
    strategy: IdStrategy, *, least_id: int, wall_ns: int, row_count: int, partition_ids: int
) -> int:
    """Return the id of the first of `row_count` rows, at least `least_id`.

    The ids of a batch follow each other; where they would straddle a partition, they move behind
    its bound. A clock beyond what ids can tell is not followed.
    """
    first = least_id
    if strategy == "time":
        time_id = wall_ns // 1_000_000 << TIME_ID_BITS
        if least_id < time_id <= ID_MAX - 4 * partition_ids:
            first = time_id
    if first // partition_ids != (first + row_count - 1) // partition_ids:
        first = (first // partition_ids + 1) * partition_ids
    return first


def wall_ms_of(time_id: int) -> int:
    """Return the millisecond since 1970 UTC that a time-based id tells."""
    return time_id >> TIME_ID_BITS
