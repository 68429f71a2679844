"""The settings of a receiver, as values."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.config import Config
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chain_kernel.model import Mark
from chain_kernel.start_at import StartAt

GAP_DATABASES_MAX: Final = 100
"""Each one that is away costs an occasional connect."""

ChainId = Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]


class ReceiverTuning(Config, frozen=True, kw_only=True):
    """Polling, waiting and giving up of a receiver. The defaults suit most."""

    poll_after_seconds: Seconds = 1.0
    """The database's head is read when no frame has been useful for this long. Keep it well above
    the interval of heartbeats (0.25 s), or every idle chain is polled for nothing."""
    outage_poll_seconds: Seconds = 0.25
    """The same while broker or database refuse frames, and for 5 s after the database had more than
    they have brought. It is the latency of delivery then, and costs one small read per receiver at
    this pace."""
    check_seconds: Seconds = 0.1
    """At most one reading of the head per interval for frames that contradict us or come from an
    unknown publisher: a flood of forged frames must not become a flood of reads."""
    prove_seconds: Seconds = 10.0
    """While frames flow, the receiver asks the database at this pace whether it holds what was
    delivered, without waiting for the answer. A checkpoint holds the last seal that the database
    has shown: a longer time saves a small read, but then a restart compares an older place."""
    retry_seconds_max: Seconds = 2.0
    """The longest pause between two tries to read from a database that is away."""
    standby_wait_seconds: Seconds = 30.0
    """Time that a standby may lag behind what is to be filled, before NotYetReadable is raised."""
    calm_collector: bool = True
    """True if the garbage collector of this process is made to run rarely, since its passes pause
    every run, and freed memory is kept. Set it to False where the process tunes both itself."""
    kafka_at_start: Literal["required", "optional"] = "required"
    """The need for the broker at a start. With "optional" a receiver that is started while Kafka is
    away delivers rows from the database, and continues live once Kafka is there; a wrong address is
    then a warning, not an error."""
    gaps_kept: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """Gaps kept in the ledger in memory, about 300 bytes each, and in `database`."""
    page_rows: Annotated[int, Meta(ge=1, le=100_000)] = 5_000
    """Rows read at once in a fill. Two pages are in memory at most: yours and the next."""
    fetch_bytes: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 4 * 1024 * 1024
    """Bytes of frames requested at once. About twice this waits in memory during a fill."""
    connect_seconds: Seconds = 10.0
    """Deadline of a connect, to a database and to the broker."""
    statement_seconds: Seconds = 10.0
    """Deadline of a statement."""
    request_seconds: Seconds = 5.0
    """Deadline of a single request to the broker."""
    close_seconds: Seconds = 2.0
    """Deadline of each step of closing."""


class ReceiverConfig(Config, frozen=True, kw_only=True):
    """A receiver of one chain: its name, where it reads and keeps its place, how it behaves.

    It is all that `orderchain.open_receiver` needs. A part that is passed in there instead of being
    made from this is compared with it.
    """

    chain_id: ChainId
    name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """The name under which the checkpoint is stored. Two receivers of one name stop each other. A
    store that is passed in must have this name. None: the name of that store."""
    database: str | DatabaseConfig | None = None
    """The chain's primary, as a DatabaseConfig or a libpq URL, for the role `receiver_writer`: it
    keeps the checkpoint, the gaps and the halts. None: nothing is stored there."""
    gap_databases: Annotated[
        tuple[str | DatabaseConfig, ...], Meta(max_length=GAP_DATABASES_MAX)
    ] = ()
    """Databases in which missing rows are read, with the role `gap_reader`: standbys first, the
    primary last. Empty: `database`, whose role then has to be a member of `gap_reader`, too."""
    kafka: str | KafkaConfig | None = None
    """A KafkaConfig, or the plaintext bootstrap servers, `host:port[,host:port]`. None: it listens
    to the last of the databases that it reads, and polls a chain that is published."""
    checkpoint: Literal["stored", "reported"] = "stored"
    """`stored`: `Receiver.checkpoint` stores the place in `database`. `reported`: you keep it (in
    `start`, or as snapshots), and it is only reported to `database`, for operators and
    retention."""
    start: Mark | None = None
    """The place to begin at, for callers that keep their place themselves. None: at the newest
    snapshot or the checkpoint, and without either, at `start_at`."""
    start_at: StartAt = StartAt("beginning")
    """The place at which a receiver begins that has none. It is ignored once there is a checkpoint,
    or each restart would skip or repeat."""
    until: Annotated[int, Meta(ge=0, le=ID_MAX)] | Literal["head"] | None = None
    """Stop after the last row whose id is not above this; with "head", at the head that the
    database had at the start. None: never."""
    idle_seconds: Seconds | None = None
    """Stop when nothing was delivered for this long and the database holds nothing more."""
    tuning: ReceiverTuning = ReceiverTuning()
    """Settings that few need to change."""

    def __repr__(self) -> str:
        return f"ReceiverConfig(chain_id={self.chain_id}, name={self.name!r})"


class KafkaSourceConfig(Config, frozen=True, kw_only=True):
    """One partition of one topic, and how it is read."""

    kafka: str | KafkaConfig
    """A KafkaConfig, or the plaintext bootstrap servers, `host:port[,host:port]`."""
    topic: Annotated[str, Meta(min_length=1, max_length=249)]
    partition: Annotated[int, Meta(ge=0)] = 0
    fetch_bytes: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 4 * 1024 * 1024
    """Bytes requested at once. About twice this waits in memory while the receiver fills a gap. A
    larger single record still arrives whole, up to the size limit of a frame."""
    records_max: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    """Records handed to the receiver at once."""
    connect_seconds: Seconds = 10.0
    """Deadline of the start, including the checks of the topic."""
    request_seconds: Seconds = 5.0
    """Deadline of a single request to the broker."""
    close_seconds: Seconds = 3.0
    """Deadline of the stop; what has not closed by then is left to the garbage collector."""


class CheckpointConfig(Config, frozen=True, kw_only=True):
    """The store of one receiver's checkpoint."""

    database: str | DatabaseConfig
    """A DatabaseConfig, or a libpq URL; the role `receiver_writer` is enough."""
    chain_id: ChainId
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    """The receiver's name. There is no default: two services that shared one would share a place,
    and the second would skip what the first has processed."""
    connect_seconds: Seconds = 5.0
    """Deadline of a connect."""
    statement_seconds: Seconds = 10.0
    """Deadline of a statement."""
    close_seconds: Seconds = 2.0
    """Deadline of writing the end of the gap ledger, and separately of closing a connection."""
    busy_seconds: Seconds = 60.0
    """Time to wait and retry while the role has no connection left."""
    gaps_kept: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """Gaps stored for this receiver; older ones are removed."""

    def __repr__(self) -> str:
        return (
            f"CheckpointConfig({DatabaseConfig.of(self.database).shown}, "
            f"chain {self.chain_id}, receiver {self.name!r})"
        )
