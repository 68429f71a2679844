"""Settings of a relay."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.kafka_config import KafkaConfig
from outbox.destination import Name, Seconds
from outbox.retention_config import RetentionConfig

_ADDRESS_CHARS_MAX: Final = 4096


class RelayConfig(RetentionConfig, frozen=True, kw_only=True):
    """What a relay must know. Several may run side by side on the same tables."""

    database: str | DatabaseConfig
    """The database with the outbox's tables, for the role `outbox_relay`: a DatabaseConfig, or a
    text as libpq takes it."""
    kafka: str | KafkaConfig
    """A KafkaConfig, or the plaintext bootstrap servers, `host:port[,host:port]`."""
    name: Name = "orderchain-outbox-relay"
    """The Kafka group in which the relays of this database share the confirm topics. Another one
    for every other database, or one would take the other's confirms."""

    sweep_seconds: Annotated[float, Meta(gt=0, le=3600)] = 1.0
    """How often the sweep looks for what is due. What is stored by others is sent at once all the
    same: they wake the relay when they commit."""
    sweep_rows_max: Annotated[int, Meta(ge=1, le=50_000)] = 2_000
    """Deliveries of one round of the sweep; while rounds are full they follow each other."""
    sweep_bytes_max: Annotated[int, Meta(ge=2**20, le=2**30)] = 32 * 2**20
    """Payload bytes of one round."""
    late_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """How far behind its last look the sweep begins, and how often it looks at everything. A
    transaction that took longer than this to commit is found by the latter."""

    send_rows_max: Annotated[int, Meta(ge=1, le=50_000)] = 2_000
    """Messages of one send. Rounds form by themselves: what comes while one is under way."""
    send_seconds: Seconds = 10.0
    """Deadline of one send. Past it the producer is thrown away."""
    waiting_rows_max: Annotated[int, Meta(ge=10, le=10**6)] = 20_000
    """Messages that may wait in memory to be sent, four fifths of them at most for one destination.
    Those beyond it are found by the sweep."""
    ack_linger_seconds: Annotated[float, Meta(ge=0, le=10)] = 0.1
    """How long an acknowledgement waits to be written with others, at least; at most twice that.
    Where the consumer confirms meanwhile, it need not be written at all: the delivery goes from
    init to consumed. 0: each is written at once."""
    probe_seconds: Seconds = 1.0
    """How often a broker that is away is tried. Nothing is claimed meanwhile."""

    upkeep_seconds: Seconds = 60.0
    """How often partitions are made and dropped, the outbox is measured, and the destinations are
    read again."""

    silent_seconds: Seconds = 300.0
    """A consumer of which nothing is heard for so long, though messages wait for it, is reported:
    in the log, by the alerts, and in `chainctl outbox status`."""

    unsafe_durability: bool = False
    """Work on a server that may lose what it has committed: without `fsync`, `full_page_writes` or
    `synchronous_commit`."""
    connect_seconds: Seconds = 10.0
    statement_seconds: Seconds = 30.0
    stop_seconds: Seconds = 10.0
    """Deadline of a stop. What is not sent by then is sent by the next sweep."""

    alert_webhook: Annotated[str, Meta(max_length=_ADDRESS_CHARS_MAX)] = ""
    """URL that gets a POST with JSON when deliveries become abnormal."""
    alert_command: tuple[str, ...] = ()
    """Program and arguments that are run then, with the same JSON on stdin."""

    def __post_init__(self) -> None:
        """Raise SettingError where settings contradict each other."""
        super().__post_init__()

    def __repr__(self) -> str:
        """Show the settings without the password."""
        shown = DatabaseConfig.of(self.database).shown
        return f"RelayConfig(database={shown!r}, kafka={self.kafka!r})"
