"""Maintenance: destinations are set up, and finished messages are dropped.

Destinations are set up in the table that every service reads, and as topics of the brokers.

Finished messages are dropped by partition: after a time, or earlier above a watermark. Unfinished
messages never are: they are moved out of a partition before it is dropped. Above a second watermark
nothing more is added: the outbox is in the business's own database, and a full disk would stop the
business itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.clients.kafka import close_client, make_admin, start_client
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import connecting
from chain_kernel.clients.postgres import fetch_of_owner
from chain_kernel.clients.topics import create_topic
from chain_kernel.clock import SystemClock, time_of
from chain_kernel.errors import RetryError, SettingError
from chain_kernel.text import counted, reason_of
from outbox.destination import Destination, changed_destination
from outbox.errors import DestinationMissing
from outbox.roles import OUTBOX_OPERATOR
from outbox.sender.config import RelayStats
from outbox.sender.store import SQL
from outbox.session import OUTBOX_TABLES, OutboxSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.clock import Clock
    from outbox.sender.config import KeepConfig, RetentionConfig


_log = logging.getLogger(__name__)

_TABLES: Final = replace(OUTBOX_TABLES, role=OUTBOX_OPERATOR)


class PartitionSize(Struct, frozen=True):
    """A partition of both histories."""

    lower_id: UUID
    ends_at: datetime
    bytes: int


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


class MaintenanceReport(Struct, frozen=True, kw_only=True):
    """The result of one round of retention."""

    partitions_dropped: int
    survivors: int
    """Unfinished messages that were moved out of them."""
    partitions_left: int
    """Partitions that were to be dropped but hold too many unfinished messages."""
    bytes: int
    """Bytes of the outbox on disk after that."""
    bytes_max: int
    """Above it, nothing is added; 0: no bound."""
    is_full: bool


@dataclass(eq=False)
class Retention:
    """Makes partitions ahead of time, drops old ones, and says when nothing more may be added."""

    config: RetentionConfig
    session: OutboxSession
    clock: Clock
    stats: RelayStats
    _is_full: bool = field(default=False, init=False)

    async def try_to_keep(self) -> None:
        """Do one round, or leave it to the next one.

        To drop what somebody reads (pg_dump, a long report) is not tried again at once: each
        attempt makes everybody who adds messages wait for the lock.
        """
        try:
            await self.keep()
        except RetryError as error:
            _log.warning("the outbox's retention has to wait: %s", reason_of(error))

    async def keep(self) -> MaintenanceReport:
        """Do one round.

        Raises:
            RetryError: a lock was not available; retry later.
            DurabilityError: the database was set to lose what it has committed.
        """
        await self.session.check_durability()
        now = time_of(self.clock.wall_ns())
        span = self.config.partition_seconds // 3_600
        ((left_out,),) = await self.session.fetch(SQL["extend"], now, span)
        if left_out:
            _log.error(
                "%s could not be made: too many messages with ids of that time were stored before "
                "it; they and later ones are in the default partition, whose rows are removed one "
                "by one", counted(left_out, "partition"),
            )  # fmt: skip
        try:
            dropped, survivors, left = await self._drop(now)
        finally:
            # Also if history could not be dropped: that is when the disk fills.
            taken, most = await self._measure()
        return MaintenanceReport(
            partitions_dropped=dropped, survivors=survivors, partitions_left=left,
            bytes=taken, bytes_max=most, is_full=self._is_full,
        )  # fmt: skip

    async def _drop(self, now: datetime) -> tuple[int, int, int]:
        """Drop what may go; return how many partitions went, messages survived, partitions stay."""
        config, dropped, moved, left = self.config, 0, 0, 0
        keep = timedelta(seconds=config.retention_seconds)
        partitions = [PartitionSize(*row) for row in await self.session.fetch(SQL["partitions"])]
        for partition in droppable(partitions, now, keep, config.history_bytes_max):
            given = partition.lower_id, config.survivors_max
            ((survivors,),) = await self.session.fetch(SQL["drop"], *given)
            if survivors is None:
                left += 1
                _log.warning(
                    "the partition up to %s holds too many unfinished messages to be dropped",
                    partition.ends_at,
                )
                continue
            dropped += 1
            moved += survivors
            self.stats.partitions_dropped += 1
            self.stats.survivors += survivors
        await self.session.fetch(SQL["trim"], now - keep)
        return dropped, moved, left

    async def _measure(self) -> tuple[int, int]:
        """Return the bytes that the outbox takes on disk, and may take (0: no bound)."""
        ((taken, most),) = await self.session.fetch(SQL["measure"], self.config.outbox_bytes_max)
        was_full, self._is_full = self._is_full, 0 < most < taken
        self.stats.found_full += self._is_full
        if self._is_full and not was_full:
            _log.error(
                "the outbox takes %d bytes and may take %d: nothing is added until history is "
                "dropped (chainctl outbox keep)", taken, most,
            )  # fmt: skip
        elif was_full and not self._is_full:
            _log.warning("the outbox takes %d bytes: messages are added again", taken)
        return taken, most


async def keep_outbox(config: KeepConfig, *, clock: Clock | None = None) -> MaintenanceReport:
    """Do one round of retention by hand, alongside any relays.

    Raises:
        ConnectError: the database refuses the login, or its certificate does not hold.
        SchemaError: the database has no outbox, or one of another version.
        DurabilityError: the database may lose what it has committed.
        RetryError: the database is away, or a lock was not available.
    """
    session = OutboxSession(config, "keep", tables=_TABLES)
    try:
        retention = Retention(config, session, clock or SystemClock(), RelayStats())
        return await retention.keep()
    finally:
        await session.close()


PARTITIONS_MAX: Final = 10_000
"""Partitions of a topic that is created here; a broker has trouble with far fewer."""

_CONNECT_SECONDS: Final = 10.0

_ACT_SECONDS: Final = 30.0
"""Deadline of all creations of one call."""

_CLOSE_SECONDS: Final = 2.0

_TOPIC_SETTINGS: Final = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
"""Set whatever the brokers' default is: a compacted topic would lose messages that share a key, and
by a sender's clock that is wrong records would be refused, or removed early."""


async def save_destinations(
    connection: Connection,
    destinations: Iterable[Destination],
    *,
    create_topics: KafkaConfig | str | None = None,
    partitions: int = 1,
) -> None:
    """Set destinations up as they are given, or change them to that.

    Args:
        connection: of the role `outbox_operator` or the owner.
        create_topics: the brokers at which their missing topics are created before that.
        partitions: of each topic of messages that is created; topics of confirms get one.

    Raises:
        SettingError: `partitions` is out of bounds.
        ConnectError: the brokers refuse the login, or their certificate does not hold.
        RetryError: no broker answers.
        OrderchainError: a topic is refused for another reason.
    """
    chosen = list(destinations)
    if create_topics is not None:
        await create_destination_topics(create_topics, chosen, partitions=partitions)
    await connection.executemany(
        SQL["save_destination"], [msgspec.structs.astuple(each) for each in chosen]
    )


async def change_destination(
    connection: Connection,
    name: str,
    *,
    create_topics: KafkaConfig | str | None = None,
    partitions: int = 1,
    **changes: Any,  # noqa: ANN401 - fields of Destination
) -> Destination:
    """Change only these fields of a destination; return the result.

    A new one needs its `topic`. Two concurrent changes are made one after the other.

    Args:
        connection: of the role `outbox_operator` or the owner.
        create_topics: the brokers at which its missing topics are created before that.
        partitions: of its topic of messages, if that is created.
        changes: fields of Destination.

    Raises:
        SettingError: a field is not valid, or a new destination has no topic.
    """
    # What a wait for another change has let through must be seen; in a caller's own transaction the
    # isolation is the caller's.
    isolation = None if connection.is_in_transaction() else "read_committed"
    async with connection.transaction(isolation=isolation):
        stored = await fetch_of_owner(connection, SQL["destination_to_change"], name)
        if not stored:
            # There is no row to lock: if two set it up at once, the second changes the first one's.
            await connection.execute(SQL["lock_destinations"])
            stored = await fetch_of_owner(connection, SQL["destination_to_change"], name)
        wanted = changed_destination(dict(stored[0]) if stored else None, name, changes)
        await save_destinations(
            connection, [wanted], create_topics=create_topics, partitions=partitions
        )
    return wanted


async def remove_destination(connection: Connection, name: str) -> None:
    """Remove a destination: from then on messages to it are refused. Its topics and history stay.

    Waits for the transactions that have added messages; others that add wait meanwhile. Needs the
    role `outbox_operator` or the owner.

    Raises:
        SettingError: a delivery to it is unfinished; no relay would send it.
        DestinationMissing: there is none of this name.
    """
    # What those transactions have added must be seen.
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(SQL["close_destinations"])
        ((unfinished,),) = await fetch_of_owner(connection, SQL["unfinished"], name)
        if unfinished:
            expected = (
                f"one without unfinished deliveries (there are {unfinished:,}: chainctl outbox "
                "abandon --destination, --status)"
            )
            raise SettingError("destination", name, expected)
        if not await fetch_of_owner(connection, SQL["remove_destination"], name):
            raise DestinationMissing(name)


async def create_destination_topics(
    kafka: KafkaConfig | str, destinations: Iterable[Destination], *, partitions: int = 1
) -> list[str]:
    """Create the missing topics of destinations; return which were missing.

    The number of replicas is the brokers' default.

    Args:
        kafka: a KafkaConfig, or the plaintext bootstrap servers.
        partitions: of each topic of messages, at most PARTITIONS_MAX; topics of confirms get one.

    Raises:
        SettingError: `partitions` is out of bounds.
        ConnectError: the brokers refuse the login, or their certificate does not hold.
        RetryError: no broker answers.
        OrderchainError: a topic is refused for another reason.
    """
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise SettingError("partitions", partitions, f"1 to {PARTITIONS_MAX}")
    wanted: dict[str, int] = {}
    for each in destinations:
        wanted[each.topic] = partitions
        if each.confirm_topic:
            wanted.setdefault(each.confirm_topic, 1)
    config = KafkaConfig.of(kafka)
    admin = make_admin(config, "topics", request_timeout_ms=int(_ACT_SECONDS * 1_000))
    try:
        async with connecting(config, _CONNECT_SECONDS):
            await start_client(admin)
        async with connecting(config, _ACT_SECONDS, doing="create topics"):
            return [
                topic
                for topic, count in wanted.items()
                if await create_topic(
                    admin, config, topic, partitions=count, settings=_TOPIC_SETTINGS
                )
            ]
    finally:
        await close_client(admin, _CLOSE_SECONDS)
