"""The settings and counters of a consumer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.config import Config
from chain_kernel.errors import SettingError
from chain_kernel.monitoring import counter_field, metrics
from chain_kernel.start_at import StartAt
from outbox.consumer.decisions import RetryLevels
from outbox.destination import Name, Topic, default_confirm_topic

Seconds = Annotated[float, Meta(gt=0, le=86_400)]

_KEY: Final = re.compile(r"[0-9a-f]{64}")


class TrustedSenders(NamedTuple):
    """The proofs by which a record is believed."""

    confirm_topics: frozenset[str]
    """It must name one of these, or none. Otherwise a stranger's record could have the consumer
    write to any topic that its login may write to."""
    keys: tuple[bytes, ...]
    """It must be made with one of these; empty: everyone is believed."""


class ConsumerConfig(Config, frozen=True, kw_only=True):
    """The settings of one consumer. Processes of one name share the partitions and the inbox."""

    name: Name
    """The name under which it confirms: one of the destination's `consumers`. It is also the Kafka
    group, and the owner of its inbox: under a new name the consumer applies everything again."""
    topics: Annotated[tuple[Topic, ...], Meta(min_length=1, max_length=1_000)]
    kafka: str | KafkaConfig
    """A KafkaConfig, or the plaintext bootstrap servers, `host:port[,host:port]`."""
    database: str | DatabaseConfig
    """The consumer's own database: a DatabaseConfig, or a text as libpq takes it. The role has the
    rights of `outbox_consumer`, and those that the handler needs."""
    idempotent: bool = False
    """Set it only for a handler whose effect is the same however often it runs. The handler gets no
    transaction and no inbox row is written; parked messages and dead letters are still stored in
    the database."""
    confirm_topics: Annotated[tuple[Topic, ...], Meta(max_length=1_000)] = ()
    """The topics on which its messages may ask it to confirm; by default the name of each topic and
    `.confirms`. A record that names another topic is passed over."""
    keys: Annotated[tuple[str, ...], Meta(max_length=1_000)] = ()
    """The keys of its destinations, old and new ones, as `chainctl outbox destination key` prints
    them. A record that was made with none of them is passed over. Without keys everyone who may
    write to its topics is believed."""
    start_at: StartAt = StartAt("beginning")
    """The start in a topic. It counts **once per consumer and topic**, at the first start:
    where that was is kept in the inbox. If it counted again, a restart, or a partition that moves
    to another process, would skip or repeat. So a partition that is added later, and a topic that
    is made later, begin at their oldest record; and a consumer whose committed offsets have expired
    begins where it first began. To move a consumer, or if a topic was made again under its name,
    stop it and call `move_start`."""
    at_once: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Messages, or batches, that are worked on at once; each holds one database connection."""
    batch_max: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """Messages that a handler of many gets at once."""
    held_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Received messages held in memory. When so many are held, no more are fetched."""
    held_bytes_max: Annotated[int, Meta(ge=1024 * 1024, le=2**36)] = 256 * 1024 * 1024
    """Bytes of their payloads and keys. When so many are held, no more are fetched; one look at the
    broker may bring 4 MiB per partition beyond it."""
    retries: RetryLevels = RetryLevels()
    retry_poll_seconds: Seconds = 1.0
    """Pause between two questions to the database for parked messages whose time has come."""
    handler_seconds: Seconds = 300.0
    """Deadline of a handler; one that takes longer has failed. It applies only to the handler
    forms: your own loop keeps its own."""
    busy_seconds: Seconds = 1.0
    """Pause before the next look at a message that another worker is working on."""
    commit_seconds: Seconds = 1.0
    """Pause between two commits of the smallest unfinished offsets. After a crash, what was
    finished in this time is received again, and found in the inbox."""
    confirm_linger_seconds: Annotated[float, Meta(ge=0, le=10)] = 0.03
    """Wait of the first confirm for others, to travel in one record."""
    retention_seconds: Annotated[float, Meta(ge=1, le=366 * 86_400)] = 72 * 3_600.0
    """The least time that ids stay in the inbox. They stay longer while an older message is not
    read yet, or not finished by its sender, and forever if a sender does not report that."""
    upkeep_seconds: Seconds = 600.0
    """Pause between two rounds in which partitions of the inbox are made and dropped."""
    unsafe_durability: bool = False
    """Work on a server that may lose what it has committed: without `fsync`, `full_page_writes` or
    `synchronous_commit`. A message whose effect is lost this way was confirmed, and never comes
    again."""
    connect_seconds: Seconds = 10.0
    """Deadline of a connect, to the database and to the broker."""
    statement_seconds: Seconds = 10.0
    """Deadline of our own statements, including the wait for another worker's transaction."""
    request_seconds: Seconds = 5.0
    """Deadline of a request to the broker."""
    close_seconds: Seconds = 5.0
    """Deadline of each step of the stop."""

    def __post_init__(self) -> None:
        """Raise SettingError, also for a key that is none, which is not shown."""
        super().__post_init__()
        self.start_at.require_topic()
        if not all(map(_KEY.fullmatch, self.keys)):
            raise SettingError("keys", "(hidden)", "64 hexadecimal digits each")

    @property
    def trusted(self) -> TrustedSenders:
        """The proofs by which a record is believed."""
        topics = self.confirm_topics or [default_confirm_topic(topic) for topic in self.topics]
        return TrustedSenders(frozenset(topics), tuple(map(bytes.fromhex, self.keys)))

    def __repr__(self) -> str:
        shown = DatabaseConfig.of(self.database).shown
        return f"ConsumerConfig({self.name!r}, {self.topics}, {shown})"


@dataclass
class ConsumerStats:
    """Counts since the start; none of them falls."""

    received: int = counter_field("Records, repeats included.")
    bad_records: int = counter_field("Records that are not our messages. They are skipped.")
    applied: int = counter_field("Messages whose effect has committed.")
    repeated: int = counter_field(
        "Messages that came again after that: no work was done, but the confirm was resent."
    )
    failures: int = counter_field("Calls of a handler that failed.")
    parked: int = counter_field("Messages parked, for a retry or after another one of their key.")
    dead: int = counter_field("Messages that became dead letters.")
    waits: int = counter_field(
        "Messages left alone for a while: another worker had them, or one of their key."
    )
    interruptions: int = counter_field(
        "Times that work was interrupted, mostly since the database was away; it was retried."
    )


METRICS: Final = metrics("orderchain_outbox_consumer", ConsumerStats)
"""The counters of a consumer, with the label `consumer`."""
