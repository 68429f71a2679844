"""Drops finished messages by partition: after a time, or earlier above a watermark.

Never what is unfinished: such messages are moved out of a partition before it is dropped.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.clock import Clock
    from outbox.relay_config import RelayConfig
    from outbox.relay_stats import RelayStats
    from outbox.store import PartitionSize, RelayStore

_log = logging.getLogger(__name__)


def droppable(
    partitions: Sequence[PartitionSize], now: datetime, keep: timedelta, bytes_max: int
) -> list[PartitionSize]:
    """Return the partitions to be dropped, the oldest first.

    Those that ended `keep` ago; and, while all together are above `bytes_max` (0: no bound), those
    that have ended at all. What still takes messages is never among them.
    """
    total = sum(partition.bytes for partition in partitions)
    found: list[PartitionSize] = []
    for partition in sorted(partitions, key=lambda each: each.lower_id):
        is_old = partition.ends_at <= now - keep
        is_too_much = bytes_max > 0 and total > bytes_max and partition.ends_at <= now
        if is_old or is_too_much:
            total -= partition.bytes
            found.append(partition)
    return found


class Retention:
    """Makes partitions ahead of time, and drops old ones."""

    def __init__(
        self, config: RelayConfig, store: RelayStore, clock: Clock, stats: RelayStats
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._stats = stats

    async def keep(self) -> None:
        """Do one round. Raises RetryError where a lock was not to be had: try again later.

        DurabilityError where the database was set to lose what it has committed.
        """
        await self._store.check_durability()
        now = datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC)
        keep = timedelta(seconds=self._config.retention_seconds)
        await self._store.extend(now, self._config.partition_seconds // 3_600)
        partitions = await self._store.partitions()
        for partition in droppable(partitions, now, keep, self._config.history_bytes_max):
            survivors = await self._store.drop(partition.lower_id, self._config.survivors_max)
            if survivors is None:
                _log.warning(
                    "the partition up to %s holds too many unfinished messages to be dropped",
                    partition.ends_at,
                )
                continue
            self._stats.partitions_dropped += 1
            self._stats.survivors += survivors
        await self._store.trim(now - keep)
