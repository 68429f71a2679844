"""What was published of a chain: the frames of its topic, up to the end found at the start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.checks.frame_reading import FIRST, FORGED, LATE, REPEATED, SIGNED
from chain_verifier.checks.published import Published, place_of
from chain_verifier.checks.topic_log import TopicLog, TopicRecord
from chain_verifier.findings import Findings, Kind, gathered, joined
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.finding_frame import finding_frame, sampled
from chain_verifier.spark.scan import looked_at
from chain_verifier.spark.sources.frames import (
    HEADS_SCHEMA,
    HIGHEST,
    ROWS_SCHEMA,
    STANDING,
    heads_decoder,
    rows_decoder,
)
from chain_verifier.spark.sources.kafka_bounds import bounds_of
from chain_verifier.spark.sources.table import CONTENT, HAS_NULL, MALFORMED
from orderchain.clients.kafka_config import KafkaConfig
from orderchain.clients.options import spark_kafka_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from chain_verifier.checks.bucket import Horizon
    from chain_verifier.config import TopicSource
    from chain_verifier.spark.sources.database import DatabaseTable


_HEAD_COLUMNS: Final = (
    "offset", "reason", "is_heartbeat", "first_pid", "first_id", "last_id", "count", "epoch",
    "sender",
)  # fmt: skip


class TopicTable(Published):
    """The rows of a topic, each at its first occurrence; an identical repeat is no further row.

    Opening it reads every record once, to learn which frames there are; the rows are decoded when
    they are looked at. With a `database`, frames that are not signed by one of its leaders, or
    whose seals are not those of its batches, are kept apart. Raises ConnectError, TopicError or
    SourceBroken.
    """

    has_positions: Final = False

    def __init__(
        self,
        spark: SparkSession,
        source: TopicSource,
        chain_id: int,
        database: DatabaseTable | None = None,
    ) -> None:
        self.name = source.name
        self._spark = spark
        kafka = KafkaConfig.of(source.kafka)
        self._options = spark_kafka_options(kafka)
        self._chain_id = chain_id
        self._database = database
        self._head = None if database is None else database.head
        self._topic, self._partition = place_of(source, chain_id, self._head)
        self._bounds = bounds_of(spark, kafka, self._topic, self._partition)
        self._log = TopicLog(self.name)
        with as_broken(self.name):
            self._read_frames()
            self._changed = self._changed_repeats()

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
            return joined([epochs, sampled(frame)])

    def _read_frames(self) -> None:
        # Read after the end of the topic was fixed: no frame before this end is of a later term.
        keys = None if self._database is None else self._database.frame_keys()
        decoder = heads_decoder(self._chain_id, keys)
        heads = self._records().mapInArrow(decoder, HEADS_SCHEMA).persist()
        try:
            for head in self._judged(heads).orderBy("offset").toLocalIterator():
                self._log.take(TopicRecord(**head.asDict()))
        finally:
            heads.unpersist()

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
        seen = list(self._log.seen_again())
        if not seen:
            return None
        low, high = min(after for after, _ in seen), max(until for _, until in seen)
        within = (F.col("id") > low) & (F.col("id") <= high)
        firsts = self._standing(FIRST, LATE).where(within)
        repeats = self._standing(REPEATED).where(F.col("id") > self._removed_until()).distinct()
        changed = repeats.join(firsts, list(CONTENT), "left_anti")
        return None if changed.isEmpty() else changed

    def _removed_until(self) -> int:
        return self.first_start if self._bounds.first else 0

    def _standing(self, *standings: int) -> DataFrame:
        return self._decoded().where(F.col(STANDING).isin(*standings)).select(*CONTENT)

    def _decoded(self) -> DataFrame:
        decoder = rows_decoder(self._chain_id, self._log.walk.marks, frozenset(self._log.forged))
        return self._records().mapInArrow(decoder, ROWS_SCHEMA)

    def _records(self) -> DataFrame:
        place = {"first": self._bounds.first, "end": self._bounds.end}
        bounds = {
            name: json.dumps({self._topic: {str(self._partition): offset}})
            for name, offset in place.items()
        }
        reader = self._spark.read.format("kafka").options(
            **self._options,
            startingOffsets=bounds["first"],
            endingOffsets=bounds["end"],
            assign=json.dumps({self._topic: [self._partition]}),
            # What retention removes during the read must not look like what was never there.
            failOnDataLoss="true",
            minPartitions=str(self._spark.sparkContext.defaultParallelism),
        )
        return reader.load().select("offset", "value")


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
