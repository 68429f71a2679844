"""The topics of one broker: which are there, which can carry a chain, and how they are made."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from chain_kernel.errors import SettingError, TopicError
from chain_kernel.limits import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from chain_kernel.clients.kafka import AIOKafkaAdminClient, UnreadableRecord
    from chain_kernel.clients.kafka_config import KafkaConfig
    from chain_kernel.clients.topics import TopicDescription
    from chainctl.settings import Settings


NAME_CHARACTERS_MAX: Final = 249
"""Kafka's own bound: with the partition's number the name becomes the name of a folder."""

ACT_SECONDS: Final = 30.0
"""Deadline of one act on the broker, the creation of a topic being the longest."""

_CLOSE_SECONDS: Final = 2.0

_RECORD_OVERHEAD_BYTES: Final = 4_096
"""Bytes that Kafka adds to one record: below 100, with room for headers to come."""

_RETENTION_MS: Final = 7 * 24 * 3_600 * 1_000
"""A week. The topic is the fast path only: a receiver that is further behind reads the database.
Long enough that a verifier can compare the topic with the database after a long weekend."""

TOPIC_SETTINGS: Final[Mapping[str, str]] = {
    # A compacted topic would lose frames: they have no key, and each one counts.
    "cleanup.policy": "delete",
    "retention.ms": str(_RETENTION_MS),
    # The broker's clock: a wrong one of a producer would remove records early, or keep them.
    "message.timestamp.type": "LogAppendTime",
    # Room for every frame that the protocol allows, so that `frame_bytes_max` may be raised later.
    "max.message.bytes": str(FRAME_BYTES_MAX + _RECORD_OVERHEAD_BYTES),
}

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class Topics:
    """The topics of one broker."""

    def __init__(self, admin: AIOKafkaAdminClient, kafka: KafkaConfig) -> None:
        self._admin = admin
        self._kafka = kafka

    async def check(self, topic: str) -> None:
        """Raise TopicError unless the existing `topic` can carry a chain."""
        found = await self.described(topic)
        if found.partitions != 1:
            expected = f"one with exactly 1 partition (it has {found.partitions})"
            raise TopicError("topic", topic, expected)
        policy = found.settings.get("cleanup.policy", "")
        if "compact" in policy:
            raise TopicError(f"cleanup.policy of topic {topic}", policy, "delete")

    async def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replicas: int | None = None,
        settings: Mapping[str, str] = TOPIC_SETTINGS,
    ) -> bool:
        """Create `topic`; return False when somebody else was faster.

        Raises ConnectError where the broker refuses, RetryError where it goes meanwhile.
        """
        from chain_kernel.clients.topics import create_topic

        async with self._acting():
            return await create_topic(
                self._admin,
                self._kafka,
                topic,
                partitions=partitions,
                replicas=replicas,
                settings=settings,
            )

    async def described(self, topic: str) -> TopicDescription:
        """Describe `topic`; one that does not exist has no partition.

        Raises ConnectError where this login may not know, RetryError where the broker goes.
        """
        from chain_kernel.clients.topics import describe_topic

        async with self._acting():
            return await describe_topic(self._admin, self._kafka, topic)

    @asynccontextmanager
    async def _acting(self) -> AsyncIterator[None]:
        """Run one act. A broker may go while it is asked: ConnectError or RetryError then."""
        from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, broker_refusal

        try:
            async with asyncio.timeout(ACT_SECONDS):
                yield
        except DRIVER_ERRORS as error:
            raise broker_refusal(error, self._kafka) from error


@asynccontextmanager
async def connected_topics(
    kafka: str | KafkaConfig, connect_seconds: float
) -> AsyncIterator[Topics]:
    """Hold a connection to the broker. Raises ConnectError or RetryError when none answers."""
    from chain_kernel.clients.kafka import close_client, make_admin, start_client
    from chain_kernel.clients.kafka_config import KafkaConfig
    from chain_kernel.clients.kafka_errors import connecting

    config = KafkaConfig.of(kafka)
    admin = make_admin(config, "topics", request_timeout_ms=int(ACT_SECONDS * 1_000))
    try:
        async with connecting(config, connect_seconds):
            await start_client(admin)
        yield Topics(admin, config)
    finally:
        await close_client(admin, _CLOSE_SECONDS)


def check_topic_name(topic: str, flag: str = "topic") -> str:
    """Return `topic` when Kafka would take it. Raises SettingError, which names `flag`."""
    if len(topic) > NAME_CHARACTERS_MAX or topic in {".", ".."} or _NAME.fullmatch(topic) is None:
        shown = topic if len(topic) <= NAME_CHARACTERS_MAX else topic[:20] + "..."
        expected = f"1 to {NAME_CHARACTERS_MAX} of the characters A-Z a-z 0-9 . _ -"
        raise SettingError(flag, shown, expected)
    return topic


def partition_of(source: str) -> tuple[str, int]:
    """Return topic and partition of topic:TOPIC:PARTITION. Raises SettingError."""
    kind, _, place = source.partition(":")
    topic, _, partition = place.rpartition(":")
    if kind != "topic" or not (partition.isascii() and partition.isdecimal()):
        raise SettingError("source", source, "topic:TOPIC:PARTITION: a file is read in whole")
    return topic, int(partition)


async def unreadable_at(
    settings: Settings, at: tuple[str, int], offset: int, isolation_level: str
) -> tuple[UnreadableRecord | None, int]:
    """Return what cannot be read from `offset` on, if it is the next record, and the end.

    `isolation_level`: that of the reader which it stops.

    Raises SettingError, ConnectError, RetryError.
    """
    from chain_kernel.clients.kafka import TopicPartition, find_unreadable
    from chain_kernel.clients.kafka_errors import connecting

    config, seconds = settings.kafka_config(), settings.connect_seconds
    async with connecting(config, seconds, doing=f"read topic {at[0]}"):
        partition = TopicPartition(*at)
        return await find_unreadable(config, partition, offset, seconds, isolation_level)
