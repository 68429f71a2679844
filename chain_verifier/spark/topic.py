"""The published records of a chain: the frames of its topic, up to the end at the start.

Records are read and decoded inside Spark's Python workers. Each decoder is for `mapInArrow`:
record batches of (offset, value) in, others out.
"""

from __future__ import annotations

from contextlib import closing
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

from msgspec.structs import astuple
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.checks.neighbours import gathered
from chain_verifier.checks.published import Bounds, PublishedTopic, TopicLog, place_of
from chain_verifier.checks.topic_frames import (
    FIRST,
    FORGED,
    LATE,
    REPEATED,
    TopicRecord,
    record_of,
    rows_standing,
)
from chain_verifier.config import CONNECTIONS_MAX
from chain_verifier.findings import Findings, Kind, joined_findings
from chain_verifier.sources.columns import ARROW_TYPES, arrays_of
from chain_verifier.sources.content import CONTENT, EVENT_TYPES
from chain_verifier.sources.published_reader import PublishedReader, bounds_of
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.finding_frame import finding_frame, sampled
from chain_verifier.spark.scan import looked_at
from chain_verifier.spark.table import HAS_NULL, MALFORMED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.checks.topic_frames import FrameKeys, FrameMark, Ranges
    from chain_verifier.config import TopicSource
    from chain_verifier.spark.database import DatabaseTable

    Decoder = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


HEADS_SCHEMA: Final = (
    "offset bigint, reason string, is_heartbeat boolean, first_pid bigint, first_id bigint, "
    "last_id bigint, count int, epoch bigint, seal_before binary, seal_after binary, "
    "is_batch_end boolean, sender string, is_genuine boolean, batch_epoch bigint"
)
"""The fields of a `TopicRecord`, in their order."""

HIGHEST: Final = "highest_before"

ROWS_SCHEMA: Final = (
    ", ".join(f"{name} {kind}" for name, kind in EVENT_TYPES.items()) + f", {HIGHEST} bigint"
)
"""Rows of frames; `highest_before` is the highest id of the earlier frames, if it is known."""

_RECORDS_JUDGED: Final = 1_000
"""Records that are judged by one look at the database."""


def heads_decoder(chain_id: int, keys: FrameKeys | None) -> Decoder:
    """Return what shows for each record whether it is a frame, and which, and by `keys` whose."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        columns = [column.split() for column in HEADS_SCHEMA.split(", ")]
        names, types = [name for name, _ in columns], [ARROW_TYPES[kind] for _, kind in columns]
        for batch in batches:
            records = zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
            heads = [astuple(record_of(*record, chain_id, keys)) for record in records]
            found = zip(*heads, strict=True) if heads else ([] for _ in names)
            arrays = [pa.array(each, kind) for each, kind in zip(found, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names)

    return decode


def rows_decoder(
    chain_id: int,
    marks: Mapping[int, FrameMark],
    forged: Collection[int],
    standings: Collection[int],
) -> Decoder:
    """Return what yields the rows of frames of `chain_id` that have one of `standings`.

    `marks` are those of a walk over the same frames; `forged` are the offsets of frames that the
    database disowns.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for offset, value in zip(batch["offset"].to_pylist(), batch["value"], strict=True):
                mark = marks.get(offset)
                events = rows_standing(
                    value.as_py(), chain_id, mark, standings, is_forged=offset in forged
                )
                if events:
                    arrays = arrays_of(chain_id, list(zip(*map(astuple, events), strict=True)))
                    highest = [None if mark is None else mark.highest_before] * len(events)
                    arrays[HIGHEST] = pa.array(highest, pa.int64())
                    yield pa.RecordBatch.from_pydict(arrays)

    return decode


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
        firsts = self._decoded(FIRST, LATE).drop(HIGHEST)
        found = firsts if self._changed is None else firsts.unionByName(self._changed)
        return found.withColumns({HAS_NULL: F.lit(False), MALFORMED: F.lit(False)})

    @property
    def forged_rows(self) -> DataFrame | None:
        """The rows of frames that the database disowns; None without such frames."""
        return self._decoded(FORGED).drop(HIGHEST) if self._log.forged else None

    def disorder(self, horizon: Horizon) -> Findings:
        """Return what is wrong with the order of the frames. Raises SourceBroken."""
        epochs = gathered(self._log.wrong_epochs())
        if not self._log.walk.is_late:
            return epochs
        late = looked_at(self._decoded(LATE), horizon)
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
            found = heads.orderBy("offset").toLocalIterator()
            while records := [TopicRecord(*row) for row in islice(found, _RECORDS_JUDGED)]:
                database = self._database
                for record in records if database is None else database.judged(records):
                    log.take(record)
        finally:
            heads.unpersist()
        return log

    def _changed_repeats(self) -> DataFrame | None:
        """Return the rows that are repeated with other content; None if there are none.

        Only the ids that occur twice are looked at, so only what was published again is shuffled.
        """
        seen = self._log.seen_again()
        if seen is None:
            return None
        low, high = seen
        within = (F.col("id") > low) & (F.col("id") <= high)
        firsts = self._decoded(FIRST, LATE).where(within).select(*CONTENT)
        repeats = self._decoded(REPEATED).where(F.col("id") > self.removed_until).select(*CONTENT)
        changed = repeats.distinct().join(firsts, list(CONTENT), "left_anti")
        return None if changed.isEmpty() else changed

    def _decoded(self, *standings: int) -> DataFrame:
        """Return the rows that have one of `standings` on the topic."""
        log = self._log
        decoder = rows_decoder(self._chain_id, log.walk.marks, frozenset(log.forged), standings)
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
