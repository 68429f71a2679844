"""The settings of a relay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.config import Config
from chain_kernel.errors import SettingError
from chain_kernel.monitoring import Metric, counter_field, metrics
from outbox.destination import Name, Seconds

if TYPE_CHECKING:
    from collections import Counter


class RetentionConfig(Config, frozen=True, kw_only=True):
    """The rules of retention."""

    retention_seconds: Annotated[float, Meta(gt=0, le=366 * 86_400)] = 72 * 3_600.0
    """Seconds that finished messages are kept, by the time at which they were stored."""
    partition_seconds: Annotated[int, Meta(ge=3_600, le=366 * 86_400, multiple_of=3_600)] = (
        6 * 3_600
    )
    """Span of one partition: the unit in which finished messages are dropped."""
    history_bytes_max: Annotated[int, Meta(ge=0)] = 0
    """First watermark: above so many bytes the oldest partitions are dropped earlier. 0: never. It
    counts what the partitions of messages and of finished deliveries take on disk, with their
    indexes; not unfinished deliveries, nor what a strange clock has put into the default partition.
    Several partitions should fit below it: one that still takes messages is never dropped."""
    outbox_bytes_max: Annotated[int, Meta(ge=0)] | None = None
    """Second watermark: while the whole outbox takes more bytes, adding is refused with OutboxFull;
    stored messages are still sent. It is stored in the database, one value for all relays: None
    leaves what was set last, 0 is no bound. A round of retention checks it, so leave room above it
    for what is added between two rounds."""
    survivors_max: Annotated[int, Meta(ge=0, le=10**6)] = 10_000
    """Unfinished messages that may be moved out of a partition before it is dropped. A partition
    with more stays."""

    def __post_init__(self) -> None:
        """Raise SettingError, also if the second watermark is not above the first."""
        super().__post_init__()
        if self.outbox_bytes_max and self.outbox_bytes_max <= self.history_bytes_max:
            expected = f"more than history_bytes_max, {self.history_bytes_max}: drop, then refuse"
            raise SettingError("outbox_bytes_max", self.outbox_bytes_max, expected)


class KeepConfig(RetentionConfig, frozen=True, kw_only=True):
    """The settings of one manual round of retention."""

    database: str | DatabaseConfig
    """The database with the outbox's tables, for `outbox_operator` or `outbox_relay`: a
    DatabaseConfig, or a text as libpq takes it."""
    unsafe_durability: bool = False
    connect_seconds: Seconds = 10.0
    statement_seconds: Seconds = 60.0

    def __repr__(self) -> str:
        """Show the settings without the password."""
        return f"KeepConfig(database={DatabaseConfig.of(self.database).shown!r})"


class RelayConfig(RetentionConfig, frozen=True, kw_only=True):
    """The settings of a relay. Several may run side by side on the same tables."""

    database: str | DatabaseConfig
    """The database with the outbox's tables, for the role `outbox_relay`: a DatabaseConfig, or a
    text as libpq takes it."""
    kafka: str | KafkaConfig
    """A KafkaConfig, or the plaintext bootstrap servers, `host:port[,host:port]`."""
    name: Name = "orderchain-outbox-relay"
    """The Kafka group in which the relays of this database share the confirm topics. Use another
    one for every other database, or one would take the other's confirms."""

    sweep_seconds: Annotated[float, Meta(gt=0, le=3600)] = 0.2
    """Pause between two looks for what is due: what others store waits so long, and not at all
    where they `wake` the relays after their commit."""
    sweep_rows_max: Annotated[int, Meta(ge=1, le=50_000)] = 2_000
    """Deliveries of one round of the sweep; full rounds follow each other at once."""
    sweep_bytes_max: Annotated[int, Meta(ge=2**20, le=2**30)] = 32 * 2**20
    """Payload bytes of one round."""
    late_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """Overlap of two looks, and the pause between two looks at everything. The latter find a
    transaction that took longer than this to commit."""

    send_rows_max: Annotated[int, Meta(ge=1, le=50_000)] = 2_000
    """Messages of one send. A round is formed from what comes while another one is under way."""
    send_seconds: Seconds = 10.0
    """Deadline of one send. After it the producer is discarded."""
    waiting_rows_max: Annotated[int, Meta(ge=10, le=10**6)] = 20_000
    """Messages that may wait in memory to be sent, at most four fifths of them for one destination.
    The sweep finds further ones."""
    ack_linger_seconds: Annotated[float, Meta(ge=0, le=10)] = 0.1
    """The least time that an acknowledgement waits to be written with others; the most is twice
    that. If the consumer confirms meanwhile, it need not be written at all: the delivery goes from
    init to consumed. 0: each is written at once."""
    probe_seconds: Seconds = 1.0
    """Pause between two tries of a broker that is away. Nothing is claimed meanwhile."""

    upkeep_seconds: Seconds = 60.0
    """Pause between two rounds in which partitions are made and dropped, the outbox is measured,
    and the destinations are read again."""

    unsafe_durability: bool = False
    """Work on a server that may lose what it has committed: without `fsync`, `full_page_writes` or
    `synchronous_commit`."""
    connect_seconds: Seconds = 10.0
    statement_seconds: Seconds = 30.0
    stop_seconds: Seconds = 10.0
    """Deadline of a stop. The next sweep sends what is not sent by then."""

    def __repr__(self) -> str:
        """Show the settings without the password."""
        shown = DatabaseConfig.of(self.database).shown
        return f"RelayConfig(database={shown!r}, kafka={self.kafka!r})"


@dataclass
class RelayStats:
    """Counters of this process; they only rise. Other processes may run alongside it."""

    sent: int = counter_field("Messages that the broker has acknowledged.")
    swept: int = counter_field(
        "Deliveries that the sweep has claimed, woken or due; none if the fast path did all."
    )
    resent: int = counter_field("Those of them that were not sent for the first time.")
    queued: int = counter_field(
        "Times that a due delivery was left alone, since its consumer had not reached it yet."
    )
    found_applied: int = counter_field(
        "Deliveries that were due, and found in the consumer's own log."
    )
    released: int = counter_field(
        "Messages whose claim was given back, since the broker was away or no relay could send."
    )
    failed: int = counter_field(
        "Messages whose send failed though the broker was there: that counted as a try."
    )
    abnormal: int = counter_field("Deliveries that became abnormal.")
    acks_written: int = counter_field(
        "Deliveries for which the broker's acknowledgement (status 1) was written."
    )
    acks_overtaken: int = counter_field(
        "Deliveries for which it need not be written, since their consumer had confirmed by then."
    )
    done_by_broker: int = counter_field("Deliveries that the broker's acknowledgement finished.")
    consumed: int = counter_field("Deliveries that their consumer confirmed.")
    early: int = counter_field(
        "Confirms that came before the broker's acknowledgement was written."
    )
    late: int = counter_field("Confirms of deliveries that had become abnormal.")
    repeated: int = counter_field("Confirms of deliveries that were already done.")
    unknown: int = counter_field(
        "Confirms for deliveries that are not known, or no longer remembered."
    )
    retrying: int = counter_field("Confirms in which a consumer said that it will retry by itself.")
    bad_confirms: Counter[str] = counter_field(
        "Records on confirm topics that were dropped.", "reason"
    )
    broker_away: int = counter_field("Times that the broker was found to be away.")
    survivors: int = counter_field("Unfinished messages that were moved out of dropped partitions.")
    partitions_dropped: int = counter_field("Partitions dropped.")
    found_full: int = counter_field(
        "Rounds of retention that found the outbox full, so that nothing more is added."
    )


METRICS: Final = metrics("orderchain_outbox_relay", RelayStats)
"""The counters of a relay. A message service exports the same names."""

WAITING: Final = Metric[int](
    "orderchain_outbox_waiting", "gauge", "Messages in memory, to be sent.", float
)
