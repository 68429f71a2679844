"""Settings of a sequencer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.kafka_config import KafkaConfig
from orderchain.config import Config
from orderchain.errors import SettingError
from orderchain.limits import (
    BATCH_ROWS_MAX,
    CHAIN_ID_MAX,
    COMMIT_SECONDS_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    PAYLOAD_BYTES_MAX,
)
from sequencer.id_strategy import IdStrategy

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class SequencerConfig(Config, frozen=True, kw_only=True):
    """What a sequencer of one chain must know. The defaults suit orders of 100 to 1,000 bytes."""

    chain_id: Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]
    database: str | DatabaseConfig
    """The primary, as a DatabaseConfig or a libpq URL. Direct connections are held: no transaction
    pooler. With several hosts, `target_session_attrs=read-write` finds the one that is it."""
    kafka: str | KafkaConfig
    """A KafkaConfig, or the plaintext bootstrap servers, `host:port[,host:port]`."""
    name: Annotated[str, Meta(min_length=1, max_length=200)] = "sequencer"
    """Who leads, as shown to operators. Identifies nothing: the nonce does."""

    batch_rows_max: Annotated[int, Meta(ge=1, le=BATCH_ROWS_MAX)] = 5_000
    """Rows of one commit. More raise the rate little and the wait of the first row much."""
    linger_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """How long the first order of a batch waits for others, unless the batch is full before.

    Counted from its submission, so it adds nothing once commits take longer. 0: not at all. A few
    milliseconds make commits fewer where many small ones take the machine.
    """
    batch_bytes_max: Annotated[int, Meta(ge=PAYLOAD_BYTES_MAX, le=2**30)] = 8 * 2**20
    """Payload and key bytes of one commit."""
    queue_bytes_max: Annotated[int, Meta(ge=PAYLOAD_BYTES_MAX, le=2**32)] = 32 * 2**20
    """Payload and key bytes that may wait for a commit; beyond it `submit` waits for room."""

    key_window_rows: Annotated[int, Meta(ge=0, le=10**8)] = 1_000_000
    """Rows whose keys are remembered, so that a repeat is answered with the first one's place; 12
    bytes of memory each. Beyond it a free-form key is new again, and a client's number too old. 0:
    keys are not compared at all."""

    frame_bytes_max: Annotated[int, Meta(ge=FRAME_BYTES_MIN, le=FRAME_BYTES_MAX)] = 512 * 1024
    """Bytes of one record. Frames are cut smaller where the topic's `max.message.bytes` is lower; a
    batch with a row that fits into none is not published, and recorded as skipped."""
    publish_interval_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.004
    """While batches are full, frames go to the broker at most so often, unless a MiB of them waits:
    those of several commits go together. A request costs the broker and both ends as much as some
    hundred orders. 0: frames go as soon as those before are acknowledged."""
    publish_queue_bytes_max: Annotated[int, Meta(ge=FRAME_BYTES_MAX, le=2**32)] = 32 * 2**20
    """Bytes of committed rows that may wait for the broker; with more, the next commit waits. What
    was on its way to the database by then, two batches at most, may come on top."""
    publish_wait_seconds: Seconds = 5.0
    """How long a commit waits, with the queue full, for the next acknowledgement of the broker.
    While they come, however slowly, the wait goes on. Past it, what waits is forgotten: the
    receivers read those rows from the database, and the publisher goes on at the head. A broker
    that was silent for so long already is not waited for at all."""
    tail_rows_max: Annotated[int, Meta(ge=0, le=10**9)] = 100_000
    """Rows that a start publishes again; a longer unpublished tail is skipped and recorded."""
    heartbeat_seconds: Seconds = 0.25
    """Idle time before the head is published again. It bounds how long a lost last frame hides."""

    when_kafka_is_away: Literal["continue", "refuse"] = "continue"
    """Whether orders are accepted that nobody sees on Kafka for now: receivers read them from the
    database. With "refuse" every submit raises BrokerAway until the broker is back."""
    kafka_away_seconds: Seconds = 10.0
    """How long the broker must have given no answer before it counts as away. Below
    `heartbeat_seconds` and the time of a slow send, orders are refused while nothing is wrong."""
    kafka_at_start: Literal["required", "optional"] = "required"
    """Whether a start, and so a take-over, needs the broker. With "optional" the topic is checked
    once the broker is there, and what was committed is published then."""

    connect_seconds: Seconds = 10.0
    lease_seconds: Seconds = 5.0
    """How long the leader's counter must stand still, by a standby's own clock, before it takes
    over. It decides only who tries; a leader that was merely slow is fenced, not doubled."""
    standby: bool = False
    """Wait for as long as another leader lives, instead of giving up."""
    commit_seconds: Annotated[float, Meta(gt=0, le=COMMIT_SECONDS_MAX)] = 4.0
    """Deadline of one commit, below `lease_seconds`; past it the connection is given up and the
    outcome read back, before a standby tries."""
    publish_seconds: Seconds = 10.0
    """Deadline of one send; past it the producer is thrown away and the frames are sent again."""
    recover_seconds: Seconds = 60.0
    """How long a database that is away is tried again before the callers get an error."""
    stop_seconds: Seconds = 15.0
    """Deadline of a graceful stop: for commits and publishing alike."""

    takeover_skip_ids: Annotated[int, Meta(ge=0, le=2**40)] = 100_000
    """Ids left out at a take-over, beside those for the time since the last commit (2^29 a second)
    and a random number below 2^29: so that an id that a lost primary may have given out is never
    given out again. More than is ever committed and not yet published. 0: nothing is left out, and
    a restored database may give ids again; for throw-away data only."""
    id_strategy: IdStrategy = "sequential"
    """How ids rise. With "time" an id tells the millisecond of its batch; it needs a chain whose
    partitions span at least an hour of such ids. It may be changed at any start: ids only rise."""
    unsafe_durability: bool = False
    """Start on a database that may lose acknowledged rows. For throw-away data only."""

    def __post_init__(self) -> None:
        """Raise SettingError where two settings contradict each other."""
        super().__post_init__()
        if self.commit_seconds >= self.lease_seconds:
            raise SettingError(
                "commit_seconds", self.commit_seconds, f"below lease_seconds, {self.lease_seconds}"
            )

    def __repr__(self) -> str:
        """Show the settings without the password."""
        shown = DatabaseConfig.of(self.database).shown
        return f"SequencerConfig(chain_id={self.chain_id}, database={shown!r})"
