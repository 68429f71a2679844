"""Topics: how they are described and created, and how durable an acknowledgement of a record is.

With `acks=all`, which all our producers request, a leader acknowledges once all replicas that are
in sync have the record, and refuses where those are fewer than `min.insync.replicas`. A replica may
become in sync or out of sync at any moment, so only the latter is certain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaTimeoutError, RequestTimedOutError, for_code
from aiokafka.protocol.metadata import MetadataRequest
from msgspec import Struct

from chain_kernel.clients.kafka import (
    close_client,
    make_admin,
    make_producer,
    start_client,
    started,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import (
    DRIVER_ERRORS,
    acl_refusal,
    connecting,
    lasting_refusal,
)
from chain_kernel.errors import OrderchainError, RetryError, TopicError
from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from chain_kernel.clients.kafka import AIOKafkaProducer

_log = logging.getLogger(__name__)

_MINIMUM: Final = "min.insync.replicas"

_UNAUTHORISED: Final = 29
"""Kafka's code for a topic that this login may not ask about, whether or not it exists."""

_UNKNOWN_TOPIC: Final = 3
_TOPIC_EXISTS: Final = 36
_REFUSED: Final = frozenset({17, 37, 38, 40, 44})
"""Kafka's codes for a name, partitions, replicas, settings that it does not take, and for what a
policy of its operator forbids."""

LOOK_SECONDS: Final = 10.0
"""Deadline of one look. The work does not wait for it, and a broker that is away is asked later."""

AGAIN_SECONDS: Final = 60.0
"""The pause between two looks at topics that were not seen: made later, or the broker was away."""

TRIAL_SECONDS: Final = 5.0
"""Time for a broker to acknowledge a trial record: it needs milliseconds."""

_TRIAL_KEY: Final = b"orderchain.trial"

_CLOSE_SECONDS: Final = 2.0

_TOPICS_SHOWN: Final = 5
"""Topics that a warning names; the rest is counted."""


class TopicDescription(Struct, frozen=True, kw_only=True):
    """A topic as the brokers describe it."""

    name: str
    partitions: int = 0
    """Number of partitions; 0: there is no such topic."""
    replicas: int = 0
    """Replicas of the partition that has the fewest."""
    settings: Mapping[str, str] = {}
    """All settings by name, including the broker's defaults."""

    @property
    def is_there(self) -> bool:
        """True if the topic exists."""
        return self.partitions > 0


async def describe_topic(
    admin: AIOKafkaAdminClient, config: KafkaConfig, name: str
) -> TopicDescription:
    """Describe one topic, with the errors of `describe_topics`."""
    return (await describe_topics(admin, config, [name]))[name]


async def describe_topics(
    admin: AIOKafkaAdminClient, config: KafkaConfig, names: Collection[str]
) -> dict[str, TopicDescription]:
    """Describe topics by name, with a started client; one that does not exist has no partition.

    It takes two requests, whatever the number of topics.

    Raises:
        ConnectError: access control hides a topic or its settings from this login.
        RetryError: the broker does not return the settings now.
        Exception: one of DRIVER_ERRORS.
    """
    # Only these: a thousand chains that each ask for all topics decode a million. Those that this
    # login may not see are without partitions in the answer, as are those that do not exist.
    request = MetadataRequest(sorted(names), allow_auto_topic_creation=False)
    answer = (await admin._send_request(request)).to_object()
    seen = {topic["topic"]: topic for topic in answer["topics"] if topic["partitions"]}
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
    replicas: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> bool:
    """Create a topic, with a started client; False where it exists already, with any settings.

    Without `replicas` it gets as many as the brokers give to topics by default.

    Raises:
        ConnectError: this login may not.
        TopicError: the brokers refuse what is asked for.
        OrderchainError: they fail.
        Exception: one of DRIVER_ERRORS.
    """
    new = NewTopic(name, partitions, 1, topic_configs=dict(settings or {}))
    # -1 requests the brokers' default, which their operator chooses. The constructor refuses the
    # number; the protocol has it since Kafka 2.4.
    new.replication_factor = replicas or -1
    response = await admin.create_topics([new])
    code, message = (*response.topic_errors[0][1:3], "")[:2]
    if code == _TOPIC_EXISTS:
        return False
    if code:
        error = for_code(code)(name)
        if refusal := lasting_refusal(error, config, f"create topic {name}"):
            raise refusal
        if code in _REFUSED:
            raise TopicError("topic", name, f"one that the brokers create ({message})")
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
    if not names:
        return {}
    # Also those that were not seen: the answer distinguishes a missing topic from a hidden one.
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


async def try_topics(
    config: KafkaConfig, names: Collection[str]
) -> dict[str, OrderchainError | None]:
    """Send a trial record to each topic; return by topic why it was not acknowledged, or None.

    The record has a key and no value. Readers of a chain drop such a record as `empty`, without a
    read of the database (`docs/wire.md`). The refusal is a ConnectError where access control
    forbids to write, else a RetryError.

    Raises:
        ConnectError: the settings cannot lead to a connection.
        RetryError: no broker answers.
    """
    producer = make_producer(config, "trial", request_timeout_ms=int(TRIAL_SECONDS * 1_000))
    try:
        async with connecting(config, LOOK_SECONDS):
            await start_client(producer)
        outcomes = await asyncio.gather(*(_try_topic(producer, config, name) for name in names))
        return dict(zip(names, outcomes, strict=True))
    finally:
        await close_client(producer, _CLOSE_SECONDS)


async def _try_topic(
    producer: AIOKafkaProducer, config: KafkaConfig, name: str
) -> OrderchainError | None:
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            await producer.send_and_wait(name, key=_TRIAL_KEY, partition=0)
    except DRIVER_ERRORS as error:
        if refusal := lasting_refusal(error, config, f"write to topic {name}"):
            return refusal
        if isinstance(error, (TimeoutError, KafkaTimeoutError, RequestTimedOutError)):
            return RetryError(
                f"the broker took a record and has not acknowledged it after {TRIAL_SECONDS:g} s"
            )
        return RetryError(f"the broker refused a record: {reason_of(error)}")
    return None


def certain_copies(topic: TopicDescription) -> int:
    """Return how many brokers certainly hold an acknowledged record; 0: none is acknowledged."""
    minimum = int(topic.settings.get(_MINIMUM) or 1)
    return minimum if minimum <= topic.replicas else 0


def durability_warning(topics: Iterable[TopicDescription], loss: str) -> str | None:
    """Return one line with the topics whose records one lost disk can take; None if there are none.

    `loss` says what happens to such a record.
    """
    single = [topic for topic in topics if topic.is_there and certain_copies(topic) < 2]
    if not single:
        return None
    shown = ", ".join(
        f"{topic.name} (replicas {topic.replicas}, {_MINIMUM} {topic.settings.get(_MINIMUM, '?')})"
        for topic in single[:_TOPICS_SHOWN]
    )
    more = f" and {len(single) - _TOPICS_SHOWN} more" if len(single) > _TOPICS_SHOWN else ""
    return (
        f"kafka: one broker's disk may be all that holds what is acknowledged on {shown}{more}: "
        f"{loss} ({_MINIMUM}=2 with 3 replicas outlives a broker)"
    )


class TopicDurability:
    """Looks once at each topic that a process writes to, and logs a warning where it must.

    It never raises, and never blocks the work: the brokers may be away, or may not allow it.
    """

    def __init__(self, kafka: KafkaConfig | str, role: str, loss: str) -> None:
        """`loss`: as of `durability_warning`; `role` names the client to the brokers."""
        self._config = KafkaConfig.of(kafka)
        self._role = role
        self._loss = loss
        self._looked_at: set[str] = set()
        self._refusal = ""

    async def keep_looking(
        self, topics: Callable[[], Collection[str]], changed: asyncio.Event | None = None
    ) -> None:
        """Look at all topics that `topics` returns, repeatedly; never returns.

        When all were looked at, the next look is when `changed` is set. Otherwise, or without
        `changed`, it is a minute later.
        """
        while True:
            if changed is not None:
                changed.clear()
            if await self.look(topics()) and changed is not None:
                await changed.wait()
            else:
                await asyncio.sleep(AGAIN_SECONDS)

    async def look(self, topics: Collection[str]) -> bool:
        """Look at those not yet looked at; return whether all have been looked at by now."""
        wanted = sorted(set(topics) - self._looked_at)
        if not wanted:
            return True
        config = self._config
        try:
            admin = make_admin(config, self._role, request_timeout_ms=int(LOOK_SECONDS * 1_000))
            async with connecting(config, LOOK_SECONDS), started(admin, _CLOSE_SECONDS):
                described = await describe_topics(admin, config, wanted)
        except OrderchainError as error:
            if self._refusal != (reason := reason_of(error)):
                _log.info("topics could not be looked at: %s", reason)
                self._refusal = reason
            return False
        found = [topic for topic in described.values() if topic.is_there]
        self._looked_at |= {topic.name for topic in found}
        if warning := durability_warning(found, self._loss):
            _log.warning("%s", warning)
        return len(found) == len(wanted)
