"""Drops finished messages by partition: after a time, or earlier above a watermark.

It never drops unfinished messages: they are moved out of a partition before it is dropped. Above a
second watermark nothing more is added: the outbox is in the business's own database, and a full
disk would stop the business itself.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from orderchain.clock import SystemClock
from orderchain.sql import OUTBOX_OPERATOR
from outbox.sender.relay_config import RelayStats
from outbox.sender.store import History
from outbox.session import OUTBOX_TABLES, OutboxSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.clock import Clock
    from outbox.sender.relay_config import KeepConfig, RetentionConfig
    from outbox.sender.store import PartitionSize, Space


_log = logging.getLogger(__name__)

_TABLES: Final = replace(OUTBOX_TABLES, role=OUTBOX_OPERATOR)


def droppable(
    partitions: Sequence[PartitionSize], now: datetime, keep: timedelta, bytes_max: int
) -> list[PartitionSize]:
    """Return the partitions to be dropped, oldest first.

    These are the ones that ended `keep` ago; and, while all together are above `bytes_max` (0: no
    bound), the ones that have ended at all. A partition that still takes messages is never among
    them.
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


class Kept(Struct, frozen=True, kw_only=True):
    """What a round has done."""

    partitions_dropped: int
    survivors: int
    """Unfinished messages that were moved out of them."""
    partitions_left: int
    """Partitions that were to be dropped but hold too many unfinished messages."""
    bytes: int
    """What the outbox takes on disk after that."""
    bytes_max: int
    """Above it, nothing is added; 0: no bound."""
    is_full: bool


class Retention:
    """Makes partitions ahead of time, drops old ones, and says when nothing more may be added."""

    def __init__(
        self, config: RetentionConfig, history: History, clock: Clock, stats: RelayStats
    ) -> None:
        self._config = config
        self._history = history
        self._clock = clock
        self._stats = stats
        self._was_full = False

    async def keep(self) -> Kept:
        """Do one round. Raises RetryError if a lock was not available: retry later.

        Raises DurabilityError if the database was set to lose what it has committed.
        """
        await self._history.check_durability()
        now = datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC)
        await self._history.extend(now, self._config.partition_seconds // 3_600)
        try:
            dropped, survivors, left = await self._drop(now)
        finally:
            # Also if history could not be dropped: that is when the disk fills.
            space = await self._measure()
        return Kept(
            partitions_dropped=dropped, survivors=survivors, partitions_left=left,
            bytes=space.bytes, bytes_max=space.bytes_max, is_full=space.is_full,
        )  # fmt: skip

    async def _drop(self, now: datetime) -> tuple[int, int, int]:
        """Drop what may go; return how many partitions went, messages survived, partitions stay."""
        config, dropped, moved, left = self._config, 0, 0, 0
        keep = timedelta(seconds=config.retention_seconds)
        partitions = await self._history.partitions()
        for partition in droppable(partitions, now, keep, config.history_bytes_max):
            survivors = await self._history.drop(partition.lower_id, config.survivors_max)
            if survivors is None:
                left += 1
                _log.warning(
                    "the partition up to %s holds too many unfinished messages to be dropped",
                    partition.ends_at,
                )
                continue
            dropped += 1
            moved += survivors
            self._stats.partitions_dropped += 1
            self._stats.survivors += survivors
        await self._history.trim(now - keep)
        return dropped, moved, left

    async def _measure(self) -> Space:
        space = await self._history.measure(self._config.outbox_bytes_max)
        self._stats.found_full += space.is_full
        if space.is_full and not self._was_full:
            _log.error(
                "the outbox takes %d bytes and may take %d: nothing is added until history is "
                "dropped (chainctl outbox keep)",
                space.bytes,
                space.bytes_max,
            )
        elif self._was_full and not space.is_full:
            _log.warning("the outbox takes %d bytes: messages are added again", space.bytes)
        self._was_full = space.is_full
        return space


async def keep_outbox(config: KeepConfig, *, clock: Clock | None = None) -> Kept:
    """Do one round of retention by hand, alongside any relays.

    Raises ConnectError, SchemaError, DurabilityError; RetryError if a lock was not available.
    """
    session = OutboxSession(config, "keep", tables=_TABLES)
    try:
        retention = Retention(config, History(session), clock or SystemClock(), RelayStats())
        return await retention.keep()
    finally:
        await session.close()
