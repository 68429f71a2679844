"""Settings of a sequencer, and of an intake from a topic."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.config import Config
from chain_kernel.errors import SettingError
from chain_kernel.limits import (
    BATCH_ROWS_MAX,
    CHAIN_ID_MAX,
    COMMIT_SECONDS_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    PAYLOAD_BYTES_MAX,
)
from chain_kernel.start_at import StartAt
from sequencer.core import IdStrategy

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class SequencerTuning(Config, frozen=True, kw_only=True):
    """Batching and waiting of a sequencer. The defaults suit orders of 100 to 1,000 bytes.

    Fields of frames, of publishing and of Kafka do nothing for a chain without a broker.
    """

    batch_rows_max: Annotated[int, Meta(ge=1, le=BATCH_ROWS_MAX)] = 5_000
    """Rows per commit. More rows raise the rate a little, and the wait of the first row a lot."""
    linger_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Time that the first order of a batch waits for others, unless the batch is full earlier.

    Counted from its submission, so it adds nothing once commits take longer. 0: no wait. A few
    milliseconds reduce the number of commits if many small ones load the machine.
    """
    batch_bytes_max: Annotated[int, Meta(ge=PAYLOAD_BYTES_MAX, le=2**30)] = 8 * 2**20
    """Payload and key bytes per commit, and per call of several orders."""
    queue_bytes_max: Annotated[int, Meta(ge=PAYLOAD_BYTES_MAX, le=2**32)] = 32 * 2**20
    """Payload and key bytes that may wait for a commit; above this, `submit` waits for room."""
    frame_bytes_max: Annotated[int, Meta(ge=FRAME_BYTES_MIN, le=FRAME_BYTES_MAX)] = 512 * 1024
    """Bytes per record. Frames are smaller if the topic's `max.message.bytes` is lower. A batch
    with a row that fits into no frame is not published, and recorded as skipped."""
    submit_within_seconds: Seconds | None = None
    """Time that an order may wait until a commit begins for it; after that it is refused with Busy,
    before it has an id. None: as long as it takes. A call may give its own; an intake waits."""
    publish_interval_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.004
    """While batches are full, frames are sent at most once per interval, unless a MiB of them
    waits: frames of several commits are sent together. A request costs the broker and both ends as
    much as some hundred orders. 0: frames are sent as soon as those before are acknowledged."""
    publish_queue_bytes_max: Annotated[int, Meta(ge=FRAME_BYTES_MAX, le=2**32)] = 32 * 2**20
    """Bytes of committed rows that may wait for the broker; with more, the next commit waits.
    Batches that are then on their way to the database, two at most, may exceed this."""
    publish_wait_seconds: Seconds = 5.0
    """Time that a commit waits, with the queue full, for the next acknowledgement of the broker.
    While acknowledgements come, however slowly, the wait continues. After this time the queue is
    dropped: the receivers read those rows from the database, and the publisher continues at the
    head. If the broker was already silent for this long, the commit does not wait at all."""
    tail_rows_max: Annotated[int, Meta(ge=0, le=10**9)] = 100_000
    """Rows that a start publishes again; a longer unpublished tail is skipped and recorded."""
    notify_interval_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.002
    """Without a broker: receivers are notified of commits at most once per interval. Each
    notification is a small transaction, and makes each receiver read once."""
    heartbeat_seconds: Seconds = 0.25
    """Idle time before the head is published again. It bounds how long the loss of the last frame
    stays unnoticed."""
    kafka_away_seconds: Seconds = 10.0
    """Time without an answer after which the broker counts as away. With a value below
    `heartbeat_seconds` and the time of a slow send, orders are refused while nothing is wrong."""
    kafka_at_start: Literal["required", "optional"] = "required"
    """The need for broker and topic at the start of a chain's first leader, so that a wrong address
    is found at once. A chain that was led before is led without them: they are checked once they
    are there, and the rows that were committed without them are published then."""
    connect_seconds: Seconds = 10.0
    lease_seconds: Seconds = 5.0
    """Time without a change of the leader's counter, by a standby's own clock, after which the
    standby takes over. It decides only who tries; a leader that was only slow is fenced, not
    duplicated."""
    commit_seconds: Annotated[float, Meta(gt=0, le=COMMIT_SECONDS_MAX)] = 4.0
    """Deadline of one commit, below `lease_seconds`; after it the connection is given up and the
    outcome is read back, before a standby tries."""
    publish_seconds: Seconds = 10.0
    """Deadline of one send; after it the producer is discarded and the frames are sent again."""
    recover_seconds: Seconds = 60.0
    """Time to retry while the database is away, before the callers get an error."""
    stop_seconds: Seconds = 15.0
    """Deadline of a graceful stop: for commits and publishing alike."""
    calm_collector: bool = True
    """True if the garbage collector of this process is made to run rarely, since its passes pause
    every order, and freed memory is kept. Set it to False where the process tunes both itself."""
    takeover_skip_ids: Annotated[int, Meta(ge=0, le=2**40)] = 100_000
    """Ids skipped at a take-over, in addition to those for the time since the last commit (2^29 per
    second) and a random number below 2^29: an id that a lost primary may have given out is never
    given out again. More than is ever committed and not yet published. 0: no ids are skipped, and
    a restored database may give out ids again; for throw-away data only."""

    def __post_init__(self) -> None:
        """Raise SettingError if two settings contradict each other."""
        super().__post_init__()
        if self.commit_seconds >= self.lease_seconds:
            raise SettingError(
                "commit_seconds", self.commit_seconds, f"below lease_seconds, {self.lease_seconds}"
            )


class SequencerConfig(Config, frozen=True, kw_only=True):
    """A sequencer of one chain: what it must know; what few need to change is in `tuning`."""

    chain_id: Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]
    database: str | DatabaseConfig | None = None
    """The primary, as a DatabaseConfig or a libpq URL: of one host its primary alone is accepted,
    several need `target_session_attrs=primary` or `read-write`. The sequencer holds direct
    connections: use no transaction pooler. None: `store`, `keys` and `lease` are passed in."""
    kafka: str | KafkaConfig | None = None
    """A KafkaConfig, or the plaintext bootstrap servers, `host:port[,host:port]`. None, and no
    `sink` passed in: the chain has no broker, and receivers are notified through the database."""
    owner: Annotated[str, Meta(min_length=1, max_length=200)] = "sequencer"
    """The leader's name, for operators. It identifies nothing: the nonce does."""
    standby: bool = False
    """Wait while another leader is alive, instead of giving up."""
    key_window_rows: Annotated[int, Meta(ge=0, le=10**8)] = 1_000_000
    """Rows whose keys are remembered, so that a repeat is answered with the first one's place; 24
    bytes of memory each. For older rows, a free-form key is new again, and a client's number is too
    old. 0: keys are not compared at all."""
    id_strategy: IdStrategy = "sequential"
    """The way ids rise. With "time" an id shows the millisecond of its batch; this needs a chain
    whose partitions span at least an hour of such ids. It may be changed at any start: ids only
    rise."""
    when_kafka_is_away: Literal["continue", "refuse"] = "continue"
    """The answer to orders while the broker is away: "continue" accepts them, since receivers read
    them from the database."""
    unsafe_durability: bool = False
    """Start on a database that may lose acknowledged rows. For throw-away data only."""
    tuning: SequencerTuning = SequencerTuning()

    def __repr__(self) -> str:
        """Show the settings without the password."""
        shown = self.database and DatabaseConfig.of(self.database).shown
        return f"SequencerConfig(chain_id={self.chain_id}, database={shown!r})"


class TopicIntakeConfig(Config, frozen=True, kw_only=True):
    """The topic that an intake reads, and how."""

    kafka: str | KafkaConfig
    """A KafkaConfig, or the plaintext bootstrap servers of the topic, `host:port[,host:port]`. They
    need not be those of the chain."""
    topic: Annotated[str, Meta(min_length=1, max_length=249)]
    """It is part of the name of every mark, and of the keys of records without a key: under another
    name the same records are new orders."""
    start_at: StartAt = StartAt("beginning")
    """The place to begin at in a topic that was never read before. With another place than the
    beginning the records before it never become orders of this chain. A partition that is added
    later is read from its beginning."""
    records_max: Annotated[int, Meta(ge=1, le=100_000)] = 5_000
    """Records handed over at once, at most; the sequencer's own bound applies too."""
    fetch_bytes: Annotated[int, Meta(ge=2**16, le=2**28)] = 2**20
    """Bytes to read ahead per partition. A larger record is read anyway."""
    connect_seconds: Seconds = 10.0
    request_seconds: Seconds = 10.0
    """Deadline of one request to the broker."""
    stop_seconds: Seconds = 5.0
    """Time that a stop waits for the commits of what was handed over. After it they continue in the
    sequencer, which has a deadline of its own."""

    def __post_init__(self) -> None:
        """Raise SettingError if a topic has no such start."""
        super().__post_init__()
        self.start_at.require_topic()
