"""The topics of chains: what they must be, and how one is made."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from orderchain.errors import ConnectError, OrderchainError, SettingError, TopicError
from orderchain.kafka_client import close_client, start_client
from orderchain.limits import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

NAME_CHARACTERS_MAX: Final = 249
"""Kafka's own bound: with the partition's number the name becomes the name of a folder."""

ACT_SECONDS: Final = 30.0
"""Deadline of one act on the broker, the creation of a topic being the longest."""

_CLOSE_SECONDS: Final = 2.0

_RECORD_OVERHEAD_BYTES: Final = 4_096
"""What Kafka adds to one record: below 100 bytes, with room for headers to come."""

_RETENTION_MS: Final = 7 * 24 * 3_600 * 1_000
"""A week. The topic is the fast path only: whoever is further behind reads the database. Long
enough that a verifier can compare the topic with the database after a long weekend."""

TOPIC_SETTINGS: Final[Mapping[str, str]] = {
    # A compacted topic would lose frames: they have no key, and each one counts.
    "cleanup.policy": "delete",
    "retention.ms": str(_RETENTION_MS),
    # Room for every frame that the protocol allows, so that `frame_bytes_max` may be raised later.
    "max.message.bytes": str(FRAME_BYTES_MAX + _RECORD_OVERHEAD_BYTES),
}

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_TOPIC_EXISTS: Final = 36


class Topics:
    """The topics of one broker."""

    def __init__(self, admin: Any) -> None:  # noqa: ANN401 - aiokafka has no types
        self._admin = admin

    async def is_there(self, topic: str) -> bool:
        """Say whether `topic` exists.

        All names are asked for: a broker may create a topic that somebody asks for by its name.
        """
        async with asyncio.timeout(ACT_SECONDS):
            return topic in await self._admin.list_topics()

    async def check(self, topic: str) -> None:
        """Raise TopicError unless the existing `topic` can carry a chain."""
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        async with asyncio.timeout(ACT_SECONDS):
            (described,) = await self._admin.describe_topics([topic])
            (response,) = await self._admin.describe_configs(
                [ConfigResource(ConfigResourceType.TOPIC, topic)]
            )
        partitions = len(described["partitions"])
        if partitions != 1:
            raise TopicError("topic", topic, f"one with exactly 1 partition (it has {partitions})")
        settings = {entry[0]: entry[1] for entry in response.resources[0][4]}
        policy = settings.get("cleanup.policy", "")
        if "compact" in policy:
            raise TopicError(f"cleanup.policy of topic {topic}", policy, "delete")

    async def create(self, topic: str) -> bool:
        """Create `topic` with one partition; False when somebody else was faster."""
        from aiokafka.admin import NewTopic

        new = NewTopic(topic, 1, 1, topic_configs=dict(TOPIC_SETTINGS))
        # -1 asks for as many replicas as the broker gives to topics by default, which is for who
        # runs it to say. Its constructor refuses the number; the protocol has it since Kafka 2.4.
        new.replication_factor = -1
        async with asyncio.timeout(ACT_SECONDS):
            response = await self._admin.create_topics([new])
        code, message = _outcome(response)
        if code == _TOPIC_EXISTS:
            return False
        if code:
            raise OrderchainError(f"kafka: topic {topic} was not created: {message or code}")
        return True


@asynccontextmanager
async def connected_topics(servers: str, connect_seconds: float) -> AsyncIterator[Topics]:
    """Hold a connection to the broker. Raises ConnectError when none answers."""
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.errors import KafkaError

    admin = AIOKafkaAdminClient(
        bootstrap_servers=servers, request_timeout_ms=int(ACT_SECONDS * 1_000)
    )
    try:
        try:
            async with asyncio.timeout(connect_seconds):
                await start_client(admin)
        except (KafkaError, OSError) as error:  # a TimeoutError is an OSError
            reason = "it is silent" if isinstance(error, TimeoutError) else type(error).__name__
            raise ConnectError("kafka", servers, f"a broker that answers ({reason})") from error
        yield Topics(admin)
    finally:
        await close_client(admin, _CLOSE_SECONDS)


def check_topic_name(topic: str, flag: str = "--topic") -> str:
    """Return `topic` when Kafka would take it. Raises SettingError, which names `flag`."""
    if len(topic) > NAME_CHARACTERS_MAX or topic in {".", ".."} or _NAME.fullmatch(topic) is None:
        shown = topic if len(topic) <= NAME_CHARACTERS_MAX else topic[:20] + "..."
        expected = f"1 to {NAME_CHARACTERS_MAX} of the characters A-Z a-z 0-9 . _ -"
        raise SettingError(flag, shown, expected)
    return topic


def _outcome(response: Any) -> tuple[int, str]:  # noqa: ANN401 - aiokafka has no types
    """Return error code and message of the only topic in a response."""
    error = response.topic_errors[0]
    return int(error[1]), str(error[2] or "") if len(error) > 2 else ""
