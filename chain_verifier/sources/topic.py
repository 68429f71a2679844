"""What was published of a chain: the frames of its topic, up to the end found at the start."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import FINDINGS_MAX
from chain_verifier.findings import Finding, Findings, Kind, gathered
from chain_verifier.scan import looked_at
from chain_verifier.sources.frames import (
    FIRST,
    FORGED,
    HEADS_SCHEMA,
    HIGHEST,
    LATE,
    REPEATED,
    ROWS_SCHEMA,
    STANDING,
    heads_decoder,
    rows_decoder,
)
from chain_verifier.sources.kafka_bounds import bounds_of
from chain_verifier.sources.table import CONTENT, HAS_NULL, MALFORMED
from chain_verifier.spark_errors import as_broken
from chain_verifier.topic_walk import FrameHead, TopicWalk
from orderchain.topic import default_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from chain_verifier.config import TopicSource
    from chain_verifier.horizon import Horizon
    from chain_verifier.sources.database import DatabaseTable

_HEAD_COLUMNS: Final = (
    "offset", "reason", "is_heartbeat", "first_pid", "first_id", "last_id", "count", "epoch",
)  # fmt: skip


class TopicTable:
    """The rows of a topic, each where it stands first; a row that stands again as it was is none.

    To open it reads every record once, to learn which frames there are; the rows are decoded when
    they are looked at. With a `database`, frames whose seals are not those of its batches are told
    apart: a receiver would drop them for their nonce. Raises ConnectError, TopicError or
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
        self._servers = source.servers
        self._chain_id = chain_id
        self._database = database
        head = None if database is None else database.head
        self._topic = source.topic or (head.topic if head else default_topic(chain_id))
        is_own = head is not None and head.topic == self._topic
        self._partition = head.topic_partition if head is not None and is_own else 0
        self._bounds = bounds_of(spark, self._servers, self._topic, self._partition)
        self._walk = TopicWalk()
        self._counts: Counter[str] = Counter()
        self._forged: set[int] = set()
        self._epochs: list[Finding] = []
        self._heartbeat_id = 0
        with as_broken(self.name):
            self._read_frames()
            self._changed = self._changed_repeats()

    @property
    def span(self) -> int:
        """How many ids lie between the first row and the last."""
        return self._walk.highest - (self._walk.first_pid or 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the topic holds beside rows that stand once, and what it no longer holds."""
        told = [f"{self._walk.frames} frames, {self._counts['heartbeat']} heartbeats"]
        refused = {
            name: count for name, count in self._counts.items() if name not in _COUNTED_APART
        }
        if refused:
            shown = ", ".join(f"{count} {name}" for name, count in sorted(refused.items()))
            told.append(f"{sum(refused.values())} records that are no frame of the chain: {shown}")
        if self._counts["forged"]:
            told.append(
                f"{self._counts['forged']} forged frames: their seals are not the database's"
            )
        repeats = sum(bool(mark.seen) for mark in self._walk.marks.values())
        if repeats:
            told.append(f"{repeats} frames hold rows that were published before")
        if self._bounds.first:
            told.append(f"retention has removed the rows up to {self._first_start()}")
        return tuple(told)

    def narrowed(self, horizon: Horizon) -> Horizon:
        """Return what of `horizon` the topic is to hold: not what retention removed, nor what the
        database does not yet say was published.
        """
        head = horizon.head
        if self._database is not None and head == self._database.head.last_id:
            told = max(self._database.head.published_id, self._heartbeat_id, self._walk.highest)
            head = min(told, head)
        if not self._bounds.first:
            return replace(horizon, head=head)
        start = max(horizon.start, self._first_start() or head or 0)
        return replace(horizon, start=start, head=None if head is None else max(head, start))

    def _first_start(self) -> int:
        return self._walk.first_pid or 0

    @property
    def rows(self) -> DataFrame:
        """The rows, each where it stands first; and those that stand again with another content."""
        firsts = self._standing(FIRST, LATE)
        found = firsts if self._changed is None else firsts.unionByName(self._changed)
        return found.withColumns({HAS_NULL: F.lit(False), MALFORMED: F.lit(False)})

    @property
    def forged_rows(self) -> DataFrame | None:
        """The rows of frames that the database disowns; None without such frames."""
        return self._standing(FORGED) if self._forged else None

    def findings(self, horizon: Horizon) -> Findings:
        """Return what is wrong with the order of the frames. Raises SourceBroken."""
        falls = [
            Finding(
                kind=Kind.WRONG_EPOCH,
                source=self.name,
                id=fall.id,
                epoch=fall.epoch,
                expected_epoch=fall.expected_epoch,
            )
            for fall in self._walk.falls
        ]
        if not self._walk.is_late:
            return gathered([*self._epochs, *falls])
        late = looked_at(self._decoded(), horizon).where(F.col(STANDING) == LATE)
        groups = late.groupBy(HIGHEST).agg(
            F.min("id").alias("id"), F.max("id").alias("until_id"), F.count(F.lit(1)).alias("count")
        )
        with as_broken(self.name):
            found = groups.orderBy("id", HIGHEST).collect()
        return gathered([*self._epochs, *falls, *(self._late_finding(row) for row in found)])

    def _late_finding(self, row: Row) -> Finding:
        return Finding(
            kind=Kind.OUT_OF_ORDER,
            source=self.name,
            id=row["id"],
            until_id=row["until_id"],
            after_id=row[HIGHEST],
            count=row["count"],
        )

    def _read_frames(self) -> None:
        heads = self._records().mapInArrow(heads_decoder(self._chain_id), HEADS_SCHEMA).persist()
        try:
            for head in self._judged(heads).orderBy("offset").toLocalIterator():
                self._take(head)
        finally:
            heads.unpersist()

    def _judged(self, heads: DataFrame) -> DataFrame:
        """Add whether a frame stands in the database as it says, and under which epoch."""
        if self._database is None:
            judged = {"is_genuine": F.lit(True), "batch_epoch": F.col("epoch")}
            return heads.withColumns(judged).select(*_HEAD_COLUMNS, *judged)
        batches = self._database.batches()
        joined = heads.join(batches, heads["seal_before"] == batches["anchor"], "left")
        judged = {"is_genuine": F.coalesce(is_genuine(), F.lit(False))}
        return joined.withColumns(judged).select(*_HEAD_COLUMNS, *judged, "batch_epoch")

    def _take(self, head: Row) -> None:
        if head["reason"] is not None:
            self._counts[head["reason"]] += 1
        elif not head["is_genuine"]:
            self._counts["forged"] += 1
            if not head["is_heartbeat"]:
                self._forged.add(head["offset"])
        elif head["is_heartbeat"]:
            self._counts["heartbeat"] += 1
            self._heartbeat_id = max(self._heartbeat_id, head["last_id"])
        else:
            self._take_frame(head)

    def _take_frame(self, head: Row) -> None:
        fields = FrameHead.__struct_fields__
        self._walk.add(FrameHead(**{name: head[name] for name in fields}))
        if head["epoch"] != head["batch_epoch"]:
            finding = Finding(
                kind=Kind.WRONG_EPOCH,
                source=self.name,
                id=head["first_id"],
                epoch=head["epoch"],
                expected_epoch=head["batch_epoch"],
            )
            if len(self._epochs) < FINDINGS_MAX:
                self._epochs.append(finding)

    def _changed_repeats(self) -> DataFrame | None:
        """Return the rows that stand again, but not as they stood before; None if there are none.

        Only the ids that stand twice are looked at, so what is shuffled is as little as was
        published again.
        """
        seen = list(_ranges_of(self._walk))
        if not seen:
            return None
        low, high = min(after for after, _ in seen), max(until for _, until in seen)
        within = (F.col("id") > low) & (F.col("id") <= high)
        firsts = self._standing(FIRST, LATE).where(within)
        repeats = self._standing(REPEATED).where(F.col("id") > self._removed_until()).distinct()
        changed = repeats.join(firsts, list(CONTENT), "left_anti")
        return None if changed.isEmpty() else changed

    def _removed_until(self) -> int:
        return self._first_start() if self._bounds.first else 0

    def _standing(self, *standings: int) -> DataFrame:
        return self._decoded().where(F.col(STANDING).isin(*standings)).select(*CONTENT)

    def _decoded(self) -> DataFrame:
        decoder = rows_decoder(self._chain_id, self._walk.marks, frozenset(self._forged))
        return self._records().mapInArrow(decoder, ROWS_SCHEMA)

    def _records(self) -> DataFrame:
        place = {"first": self._bounds.first, "end": self._bounds.end}
        bounds = {
            name: json.dumps({self._topic: {str(self._partition): offset}})
            for name, offset in place.items()
        }
        reader = self._spark.read.format("kafka").options(
            startingOffsets=bounds["first"],
            endingOffsets=bounds["end"],
            assign=json.dumps({self._topic: [self._partition]}),
            # What retention removes while it is read must not pass for what was never there.
            failOnDataLoss="true",
            minPartitions=str(self._spark.sparkContext.defaultParallelism),
        )
        return (
            reader.option("kafka.bootstrap.servers", self._servers).load().select("offset", "value")
        )


_COUNTED_APART: Final = frozenset({"heartbeat", "forged"})


def is_genuine() -> Column:
    """Return whether a frame is (a slice of) the batch behind the seal that it names."""
    at_head = F.col("last_id") == F.col("anchor_id")
    within = (F.col("first_pid") >= F.col("anchor_id")) & (
        F.col("last_id") <= F.col("batch_last_id")
    )
    ends = (F.col("last_id") == F.col("batch_last_id")) & (
        F.col("seal_after") == F.col("batch_seal")
    )
    return F.when(F.col("is_heartbeat"), at_head).otherwise(
        within & (~F.col("is_batch_end") | ends)
    )


def _ranges_of(walk: TopicWalk) -> Iterator[tuple[int, int]]:
    for mark in walk.marks.values():
        yield from mark.seen
