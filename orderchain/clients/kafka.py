"""Clients of Kafka: how they are made, begun and ended, and what they ask of topics.

Nothing else constructs a client of aiokafka or imports it. However a client ends, it leaves no
connection open: aiokafka closes its connections as the last step of a `stop`, and one that is cut
off by a deadline, a cancellation or an error never comes so far, nor does a `start` that is cut
off while it asks its first question. A process that goes on then keeps sockets, and a place in its
group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.producer.message_accumulator import BatchBuilder
from msgspec import Struct

from orderchain.clients.kafka_client import (
    close_client,
    end_client,
    leave_client,
    start_client,
    started,
)
from orderchain.clients.kafka_connection import (
    DRIVER_ERRORS,
    acl_refusal,
    connect_refusal,
    connecting,
    connection_options,
    is_broker_there,
    not_allowed,
)
from orderchain.errors import OrderchainError, RetryError

if TYPE_CHECKING:
    from collections.abc import Collection

    from orderchain.clients.kafka_config import KafkaConfig

__all__ = [
    "DRIVER_ERRORS",
    "AIOKafkaAdminClient",
    "AIOKafkaConsumer",
    "AIOKafkaProducer",
    "BatchBuilder",
    "CommitFailedError",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "IllegalStateError",
    "InvalidTopicError",
    "KafkaError",
    "MessageSizeTooLargeError",
    "NoOffsetForPartitionError",
    "OffsetOutOfRangeError",
    "TopicAuthorizationFailedError",
    "TopicDescription",
    "TopicPartition",
    "UnknownTopicOrPartitionError",
    "close_client",
    "connect_refusal",
    "connecting",
    "create_topic",
    "describe_topic",
    "describe_topics",
    "end_client",
    "is_broker_there",
    "leave_client",
    "make_admin",
    "make_consumer",
    "make_producer",
    "not_allowed",
    "start_client",
    "started",
]

_UNAUTHORISED: Final = 29
"""Kafka's code for a topic that this login may not ask about, whether or not it is there."""

_UNKNOWN_TOPIC: Final = 3
_TOPIC_EXISTS: Final = 36

# -- making --------------------------------------------------------------------------------------


def make_consumer(
    config: KafkaConfig,
    role: str,
    *topics: str,
    **options: Any,  # noqa: ANN401 - those of aiokafka
) -> AIOKafkaConsumer:
    """Return a consumer, not started. `role` names it to brokers; `options` are those of aiokafka.

    Two of its own defaults lose records in silence, and are others here: no offset is committed
    unasked, and an offset that is no longer in the log raises ("latest" skips what there is).
    """
    safe = {"enable_auto_commit": False, "auto_offset_reset": "none"}
    return AIOKafkaConsumer(*topics, **connection_options(config, role), **{**safe, **options})


def make_producer(
    config: KafkaConfig,
    role: str,
    **options: Any,  # noqa: ANN401 - those of aiokafka
) -> AIOKafkaProducer:
    """Return a producer, not started, that waits for all replicas; else as `make_consumer`."""
    return AIOKafkaProducer(**connection_options(config, role), **{"acks": "all", **options})


def make_admin(
    config: KafkaConfig,
    role: str,
    **options: Any,  # noqa: ANN401 - those of aiokafka
) -> AIOKafkaAdminClient:
    """Return an admin client, not started; as `make_consumer`."""
    return AIOKafkaAdminClient(**connection_options(config, role), **options)


# -- topics --------------------------------------------------------------------------------------


class TopicDescription(Struct, frozen=True, kw_only=True):
    """A topic as the brokers describe it."""

    name: str
    partitions: int = 0
    """How many it has; 0: there is no such topic."""
    replicas: int = 0
    """Of the partition that has the fewest."""
    settings: Mapping[str, str] = {}
    """All of them by name, those of the broker's defaults too."""

    @property
    def is_there(self) -> bool:
        """Whether the topic exists."""
        return self.partitions > 0


async def describe_topic(
    admin: AIOKafkaAdminClient, config: KafkaConfig, name: str
) -> TopicDescription:
    """Describe one topic; as `describe_topics`."""
    return (await describe_topics(admin, config, [name]))[name]


async def describe_topics(
    admin: AIOKafkaAdminClient, config: KafkaConfig, names: Collection[str]
) -> dict[str, TopicDescription]:
    """Describe topics by name, with a started client; one that does not exist has no partition.

    Takes two questions, however many topics there are. Raises ConnectError where access control
    keeps a topic or its settings from this login, RetryError, and DRIVER_ERRORS.
    """
    # All topics are asked for: a broker may create one that is asked for by its name. Those that
    # this login may not see are missing in the answer, as are those that do not exist.
    seen = {topic["topic"]: topic for topic in await admin.describe_topics()}
    settings = await _settings(admin, config, names, seen)
    described = {}
    for name in names:
        partitions = seen[name]["partitions"] if name in seen else []
        described[name] = TopicDescription(
            name=name,
            partitions=len(partitions),
            replicas=min((len(each["replicas"]) for each in partitions), default=0),
            settings=settings.get(name, {}),
        )
    return described


async def create_topic(
    admin: AIOKafkaAdminClient,
    config: KafkaConfig,
    name: str,
    *,
    partitions: int = 1,
    settings: Mapping[str, str] | None = None,
) -> bool:
    """Create a topic, with a started client; False where it is there already, whatever it is like.

    It gets as many replicas as the brokers give to topics by default. Raises ConnectError where
    this login may not, OrderchainError where the brokers refuse, and DRIVER_ERRORS.
    """
    new = NewTopic(name, partitions, 1, topic_configs=dict(settings or {}))
    # -1 asks for the brokers' default, which is for who runs them to say. The constructor refuses
    # the number; the protocol has it since Kafka 2.4.
    new.replication_factor = -1
    response = await admin.create_topics([new])
    code, message = (*response.topic_errors[0][1:3], "")[:2]
    if code == _TOPIC_EXISTS:
        return False
    if code:
        error = for_code(code)(name)
        if refusal := not_allowed(error, config, f"create topic {name}"):
            raise refusal
        raise OrderchainError(
            f"kafka: topic {name} was not created: {message or type(error).__name__}"
        )
    return True


async def _settings(
    admin: AIOKafkaAdminClient,
    config: KafkaConfig,
    names: Collection[str],
    seen: Collection[str],
) -> dict[str, dict[str, str]]:
    """Return the settings of those topics that exist."""
    if not names:
        return {}
    # Those that were not seen, too: the answer tells a missing topic from one that is hidden.
    wanted = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    settings = {}
    for response in await admin.describe_configs(wanted):
        for code, message, _, name, entries in response.resources:
            if code == _UNAUTHORISED:
                operation = "DescribeConfigs" if name in seen else "Describe and DescribeConfigs"
                raise acl_refusal(config, f"{operation} topic {name}")
            if code not in (0, _UNKNOWN_TOPIC):
                reason = message or for_code(code).__name__
                raise RetryError(f"kafka: settings of topic {name}: {reason}")
            if not code:
                settings[name] = {entry[0]: entry[1] or "" for entry in entries}
    return settings
