"""What was published of a chain: the frames of its topic, up to the end found at the start.

Records are read and decoded inside Spark's Python workers. Each decoder is for `mapInArrow`:
record batches of (offset, value) in, others out.
"""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.checks.neighbours import gathered
from chain_verifier.checks.published import Bounds, PublishedTopic, TopicLog, place_of
from chain_verifier.checks.topic_frames import (
    FIRST,
    FORGED,
    LATE,
    REPEATED,
    SIGNED,
    TopicRecord,
    events_of,
    header_of,
    standing_of,
)
from chain_verifier.config import CONNECTIONS_MAX
from chain_verifier.findings import Findings, Kind, joined_findings
from chain_verifier.published_reader import PublishedReader, bounds_of
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.finding_frame import finding_frame, sampled
from chain_verifier.spark.scan import looked_at
from chain_verifier.spark.table import HAS_NULL, MALFORMED
from chain_verifier.verification import CONTENT, EVENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from chain_kernel.model import Event
    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.checks.topic_frames import FrameKeys, FrameMark, Ranges
    from chain_verifier.config import TopicSource
    from chain_verifier.spark.database import DatabaseTable

    Decoder = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


HEADS_SCHEMA: Final = (
    "offset bigint, reason string, is_heartbeat boolean, first_pid bigint, first_id bigint, "
    "last_id bigint, count int, epoch bigint, seal_before binary, seal_after binary, "
    "is_batch_end boolean, sender string"
)
"""One row per record; `reason` says why it is no frame that can be used, else it is NULL. `sender`
is one of those of `topic_frames`, NULL if no keys are known."""

STANDING: Final = "standing"
HIGHEST: Final = "highest_before"

ROWS_SCHEMA: Final = (
    ", ".join(f"{name} {kind}" for name, kind in EVENT_TYPES.items())
    + f", {STANDING} int, {HIGHEST} bigint"
)
"""The rows of all frames; `standing` is one of the numbers of `topic_frames`, and `highest_before`
the highest id of the earlier frames, if it is known."""

_NO_HEAD: Final = (None,) * 10

_fields_of: Final = attrgetter(
    "is_heartbeat", "first_pid", "first_id", "last_id", "count", "epoch", "seal_before",
    "seal_after", "is_batch_end",
)  # fmt: skip
"""The fields of a header, in the order of `HEADS_SCHEMA`."""


def heads_decoder(chain_id: int, keys: FrameKeys | None) -> Decoder:
    """Return what shows for each record whether it is a frame, and which, and by `keys` whose.

    The whole frame is decoded: if a receiver drops it because of its body, it is no frame here
    either.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            records = zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
            yield _heads_batch(
                [(offset, *_head_of(value, chain_id, keys)) for offset, value in records]
            )

    return decode


def _head_of(value: bytes | None, chain_id: int, keys: FrameKeys | None) -> tuple[object, ...]:
    header = header_of(value, chain_id)
    if value is None or isinstance(header, str):
        return (header, *_NO_HEAD)
    sender = None if keys is None else keys.sender_of(value, header)
    return (None, *_fields_of(header), sender)


def _heads_batch(heads: list[tuple[object, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    names = [column.split()[0] for column in HEADS_SCHEMA.split(", ")]
    int64, text, flag, blob = pa.int64(), pa.string(), pa.bool_(), pa.binary()
    types = [int64, text, flag, int64, int64, int64, pa.int32(), int64, blob, blob, flag, text]
    columns = list(zip(*heads, strict=True)) or [()] * len(names)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names)


def rows_decoder(chain_id: int, marks: Mapping[int, FrameMark], forged: Collection[int]) -> Decoder:
    """Return what yields the rows of every frame of `chain_id`, with the standing of each row.

    `marks` are those of a walk over the same frames; `forged` are the offsets of frames that the
    database disowns.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for offset, value in zip(batch["offset"], batch["value"], strict=True):
                events = events_of(value.as_py(), chain_id)
                if events:
                    at = offset.as_py()
                    yield _rows_batch(chain_id, events, marks.get(at), is_forged=at in forged)

    return decode


def _rows_batch(
    chain_id: int, events: list[Event], mark: FrameMark | None, *, is_forged: bool
) -> pa.RecordBatch:
    import pyarrow as pa

    count = len(events)
    standing = [standing_of(event.id, mark, is_forged=is_forged) for event in events]
    highest = None if mark is None else mark.highest_before
    columns = {
        "chain_id": pa.array([chain_id] * count, pa.int32()),
        "id": pa.array([event.id for event in events], pa.int64()),
        "pid": pa.array([event.pid for event in events], pa.int64()),
        "key": pa.array([event.key for event in events], pa.string()),
        "event_time_ns": pa.array([event.event_time_ns for event in events], pa.int64()),
        "payload": pa.array([event.payload for event in events], pa.binary()),
        STANDING: pa.array(standing, pa.int32()),
        HIGHEST: pa.array([highest] * count, pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def record_reader(
    source: TopicSource, topic: str, partition: int, ranges: Sequence[Bounds]
) -> Decoder:
    """Return what yields the records of the ranges whose numbers go in."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        numbers = [number for batch in batches for number in batch["id"].to_pylist()]
        for number in numbers:
            with closing(PublishedReader(source, topic, partition)) as reader:
                for page in reader.pages(ranges[number]):
                    offsets = pa.array([record.offset for record in page], pa.int64())
                    values = pa.array([record.value for record in page], pa.binary())
                    yield pa.RecordBatch.from_arrays([offsets, values], ["offset", "value"])

    return read


_HEAD_COLUMNS: Final = (
    "offset", "reason", "is_heartbeat", "first_pid", "first_id", "last_id", "count", "epoch",
    "sender",
)  # fmt: skip


_RECORDS_A_CONNECTION: Final = 200
"""A second consumer costs more than it saves below this many records."""


class TopicTable(PublishedTopic):
    """The rows of a topic, each at its first occurrence; an identical repeat is no further row.

    Opening it reads every record once, to learn which frames there are; the rows are decoded when
    they are looked at. With a `database`, frames that are not signed by one of its leaders, or
    whose seals are not those of its batches, are kept apart. Raises ConnectError, TopicError or
    SourceBroken.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: TopicSource,
        chain_id: int,
        database: DatabaseTable | None = None,
    ) -> None:
        self.name = source.name
        self._spark = spark
        self._source = source
        self._chain_id = chain_id
        self._database = database
        self._head = None if database is None else database.head
        self._topic, self._partition = place_of(source, chain_id, self._head)
        self._bounds = bounds_of(source, self._topic, self._partition)
        with as_broken(self.name):
            self._log = self._read_frames()
            self._changed = self._changed_repeats()
            self.may_lack: Ranges = () if database is None else database.skips()

    @property
    def rows(self) -> DataFrame:
        """The first occurrence of each row, and the repeats with other content."""
        firsts = self._standing(FIRST, LATE)
        found = firsts if self._changed is None else firsts.unionByName(self._changed)
        return found.withColumns({HAS_NULL: F.lit(False), MALFORMED: F.lit(False)})

    @property
    def forged_rows(self) -> DataFrame | None:
        """The rows of frames that the database disowns; None without such frames."""
        return self._standing(FORGED) if self._log.forged else None

    def disorder(self, horizon: Horizon) -> Findings:
        """Return what is wrong with the order of the frames. Raises SourceBroken."""
        epochs = gathered(self._log.wrong_epochs())
        if not self._log.walk.is_late:
            return epochs
        late = looked_at(self._decoded(), horizon).where(F.col(STANDING) == LATE)
        groups = late.groupBy(F.col(HIGHEST).alias("after_id")).agg(
            F.min("id").alias("id"), F.max("id").alias("until_id"), F.count(F.lit(1)).alias("count")
        )
        with as_broken(self.name):
            frame = finding_frame(groups, kind=Kind.OUT_OF_ORDER.value, source=self.name)
            return joined_findings([epochs, sampled(frame)])

    def _read_frames(self) -> TopicLog:
        log = TopicLog(self.name, self._head.boundary_id if self._head else 0)
        # Read after the end of the topic was fixed: no frame before this end is of a later term.
        keys = None if self._database is None else self._database.frame_keys()
        decoder = heads_decoder(self._chain_id, keys)
        heads = self._records().mapInArrow(decoder, HEADS_SCHEMA).persist()
        try:
            for head in self._judged(heads).orderBy("offset").toLocalIterator():
                log.take(TopicRecord(**head.asDict()))
        finally:
            heads.unpersist()
        return log

    def _judged(self, heads: DataFrame) -> DataFrame:
        """Add whether a frame matches the database, and under which epoch its batch is stored."""
        if self._database is None:
            judged = {"is_genuine": F.lit(True), "batch_epoch": F.col("epoch")}
            return heads.withColumns(judged).select(*_HEAD_COLUMNS, *judged)
        batches = self._database.batches()
        joined_rows = heads.join(batches, heads["seal_before"] == batches["anchor"], "left")
        judged = {"is_genuine": F.coalesce(is_genuine(), F.lit(False))}
        return joined_rows.withColumns(judged).select(*_HEAD_COLUMNS, *judged, "batch_epoch")

    def _changed_repeats(self) -> DataFrame | None:
        """Return the rows that are repeated with other content; None if there are none.

        Only the ids that occur twice are looked at, so only what was published again is shuffled.
        """
        seen = self._log.seen_again()
        if seen is None:
            return None
        low, high = seen
        within = (F.col("id") > low) & (F.col("id") <= high)
        firsts = self._standing(FIRST, LATE).where(within)
        repeats = self._standing(REPEATED).where(F.col("id") > self.removed_until).distinct()
        changed = repeats.join(firsts, list(CONTENT), "left_anti")
        return None if changed.isEmpty() else changed

    def _standing(self, *standings: int) -> DataFrame:
        return self._decoded().where(F.col(STANDING).isin(*standings)).select(*CONTENT)

    def _decoded(self) -> DataFrame:
        decoder = rows_decoder(self._chain_id, self._log.walk.marks, frozenset(self._log.forged))
        return self._records().mapInArrow(decoder, ROWS_SCHEMA)

    def _records(self) -> DataFrame:
        """Return offset and value of each record, read by several consumers side by side."""
        first, span = self._bounds.first, self._bounds.end - self._bounds.first
        count = min(CONNECTIONS_MAX, span // _RECORDS_A_CONNECTION + 1)
        cuts = [first + span * number // count for number in range(count + 1)]
        ranges = [Bounds(first=low, end=high) for low, high in pairwise(cuts)]
        read = record_reader(self._source, self._topic, self._partition, ranges)
        numbers = self._spark.range(0, count, 1, count)
        return numbers.mapInArrow(read, "offset bigint, value binary")


def is_genuine() -> Column:
    """Return whether a frame is (a slice of) the batch after the seal that it names, and signed by
    a leader of the chain.
    """
    at_head = F.col("last_id") == F.col("anchor_id")
    within = (F.col("first_pid") >= F.col("anchor_id")) & (
        F.col("last_id") <= F.col("batch_last_id")
    )
    ends = (F.col("last_id") == F.col("batch_last_id")) & (
        F.col("seal_after") == F.col("batch_seal")
    )
    is_signed = F.col("sender") == SIGNED
    return is_signed & F.when(F.col("is_heartbeat"), at_head).otherwise(
        within & (~F.col("is_batch_end") | ends)
    )
