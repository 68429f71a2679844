"""Sets destinations up: in the table that every service reads, and as topics of the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from orderchain.clients.kafka import (
    close_client,
    connecting,
    create_topic,
    make_admin,
    start_client,
)
from orderchain.clients.kafka_config import KafkaConfig
from orderchain.errors import SettingError
from outbox.destination import Destination, changed_destination
from outbox.sender.store import SQL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orderchain.clients.postgres import Connection


PARTITIONS_MAX: Final = 10_000
"""Partitions of a topic that is created here; a broker has trouble with far fewer."""

_CONNECT_SECONDS: Final = 10.0

_ACT_SECONDS: Final = 30.0
"""Deadline of all creations of one call."""

_CLOSE_SECONDS: Final = 2.0

_TOPIC_SETTINGS: Final = {"cleanup.policy": "delete"}
"""Set whatever the brokers' default is: a compacted topic would lose messages that share a key."""


async def save_destinations(
    connection: Connection,
    destinations: Iterable[Destination],
    *,
    create_topics: KafkaConfig | str | None = None,
    partitions: int = 1,
) -> None:
    """Set destinations up as they are given, or change them to that.

    `create_topics` names the brokers at which their missing topics are created before that, as by
    `create_destination_topics`. Needs the role `outbox_operator` or the owner.
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

    A new one needs its `topic`. Two concurrent changes are made one after the other. Otherwise as
    `save_destinations`. Raises SettingError.
    """
    async with connection.transaction():
        stored = await connection.fetchrow(SQL["destination_to_change"], name)
        if stored is None:
            # There is no row to lock: if two set it up at once, the second changes the first one's.
            await connection.execute(SQL["lock_destinations"])
            stored = await connection.fetchrow(SQL["destination_to_change"], name)
        wanted = changed_destination(None if stored is None else dict(stored), name, changes)
        await save_destinations(
            connection, [wanted], create_topics=create_topics, partitions=partitions
        )
    return wanted


async def create_destination_topics(
    kafka: KafkaConfig | str, destinations: Iterable[Destination], *, partitions: int = 1
) -> list[str]:
    """Create the missing topics of destinations; return which were missing.

    Topics of messages get so many `partitions`, topics of confirms one; the number of replicas is
    the brokers' default. Raises SettingError, ConnectError, RetryError, OrderchainError.
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
