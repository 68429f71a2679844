"""`verify --follow`: the checks on a topic as it grows, as a Structured Streaming query.

Each micro-batch is a few frames. The walk over their places continues where the last micro-batch
ended, and their rows are compared with the same rows of the database. What was found, and the
position, are kept in a folder.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from pyspark.sql import functions as F  # noqa: N812

from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.options import spark_kafka_options
from chain_kernel.errors import InputError, SettingError
from chain_kernel.files import private_opener, read_bounded
from chain_kernel.monitoring import Metric
from chain_kernel.text import reason_of
from chain_verifier.checks.published import place_of
from chain_verifier.checks.topic_frames import (
    FORGED,
    SIGNED,
    TopicFollower,
    TopicRecord,
    WalkState,
)
from chain_verifier.config import FINDINGS_MAX
from chain_verifier.findings import Finding, Kind
from chain_verifier.places import Place, open_to_read, write_whole
from chain_verifier.published_reader import bounds_of
from chain_verifier.spark.comparison import by_id, findings_of, pairs_of
from chain_verifier.spark.database import DatabaseTable
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.own_session import is_connect
from chain_verifier.spark.topic import (
    HEADS_SCHEMA,
    ROWS_SCHEMA,
    STANDING,
    heads_decoder,
    is_genuine,
    rows_decoder,
)
from chain_verifier.verification import CONTENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from chain_kernel.monitoring import Sample
    from chain_verifier.config import DatabaseSource, TopicSource

    ReportFinding = Callable[[Finding], None]


_STATE: Final = "state.json"
_STATE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a state: it names the places that are still open, some 100 bytes each."""
_FINDINGS: Final = "findings.jsonl"


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The position of a follower: the state and the findings of a step are written as one."""

    number: int
    """Spark's number of the micro-batch; it is repeated after a crash in its middle."""
    chain_id: int
    walk: WalkState
    findings_bytes: int
    """The length of the file of findings; bytes after it are of a step that did not end."""


class FollowLog:
    """One folder, or URL, of one chain."""

    def __init__(self, folder: Place, chain_id: int) -> None:
        """Open or make the folder. Raises InputError when it belongs to another chain."""
        self._folder = folder
        self._chain_id = chain_id
        folder.mkdir(parents=True, exist_ok=True)
        self.step = self._read()

    @property
    def spark_folder(self) -> str:
        """Where Spark keeps its own offsets."""
        return str(self._folder / "spark")

    @property
    def findings_path(self) -> Place:
        """All findings so far, one JSON object per line."""
        return self._folder / _FINDINGS

    def is_done(self, number: int) -> bool:
        """Whether the step `number` was written: Spark repeats the last one after a crash."""
        return self.step is not None and number <= self.step.number

    def write(self, number: int, walk: WalkState, findings: list[Finding]) -> None:
        """Write a step: after a crash it is there with all its findings, or not at all."""
        begin = self.step.findings_bytes if self.step else 0
        lines = b"".join(msgspec.json.encode(finding) + b"\n" for finding in findings)
        self._append(begin, lines)
        step = Step(
            number=number, chain_id=self._chain_id, walk=walk, findings_bytes=begin + len(lines)
        )
        write_whole(self._folder / _STATE, msgspec.json.encode(step))
        self.step = step

    def _append(self, begin: int, lines: bytes) -> None:
        path = self.findings_path
        if isinstance(path, Path):
            with open(path, "ab", opener=private_opener) as file:
                file.truncate(begin)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        elif lines:
            # Nothing can be added to an object. Steps with findings are few.
            before = b""
            if begin:
                with open_to_read(path) as file:
                    before = file.read(begin)
            write_whole(path, before + lines)

    def _read(self) -> Step | None:
        path = self._folder / _STATE
        if not path.is_file():
            return None
        try:
            content = read_bounded(path, _STATE_BYTES_MAX, open_to_read)
            step = msgspec.json.decode(content, type=Step)
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                "checkpoint", str(path), f"the state of a follower ({reason_of(error)})"
            ) from error
        if step.chain_id != self._chain_id:
            raise InputError("checkpoint", f"chain {step.chain_id}", f"chain {self._chain_id}")
        return step


_FRAME: Final = (
    "offset", "is_heartbeat", "first_pid", "first_id", "last_id", "count", "epoch", "sender",
    "batch_epoch",
)  # fmt: skip
"""What is read of a frame."""

FRAMES_A_STEP: Final = 500
"""Maximum number of records per micro-batch: they are judged on the driver, and their rows are read
from the database at once."""

TRIGGER_SECONDS: Final = 1
"""How often the topic is looked at: a fault must be reported within 10 s."""

SILENT_SECONDS_MAX: Final = 60.0
"""Without new records for so long a follower is not ready: a topic with a leader has heartbeats."""

_LOOK_SECONDS: Final = 0.5
"""How often the query is checked to be still running."""


class FollowStats(Struct, frozen=True, kw_only=True):
    """How far a follower is."""

    verified_id: int
    """All rows of the topic up to it were looked at."""
    step_age_seconds: float
    """Since the last step ended; a topic with a leader has a heartbeat at least every few s."""
    findings: int
    """Findings that this follower reported."""


METRICS: Final = (
    Metric[FollowStats](
        "orderchain_verifier_verified_id", "gauge", "Orders of the topic up to it were verified.",
        lambda stats: stats.verified_id,
    ),
    Metric[FollowStats](
        "orderchain_verifier_verified_age_seconds", "gauge",
        "Seconds since the verifier last looked at new records, or started.",
        lambda stats: stats.step_age_seconds,
    ),
    Metric[FollowStats](
        "orderchain_verifier_findings_total", "counter", "Findings of this process.",
        lambda stats: stats.findings,
    ),
)  # fmt: skip
"""What a follower exports, with the label `chain`."""


class Follower:
    """Follows the topic of one chain, compared with its database.

    `folder` keeps the state of the chain, Spark's offsets and all findings: a second follower on it
    continues where the first one ended, and reports nothing twice.
    """

    def __init__(
        self,
        spark: SparkSession,
        topic: TopicSource,
        database: DatabaseSource,
        chain_id: int,
        folder: Place,
        report: ReportFinding,
    ) -> None:
        """Open everything. Raises RefusedError for a source or a folder that cannot be used."""
        if is_connect(spark):
            raise SettingError("master", "a server of Connect", "another one, to follow a topic")
        self._spark = spark
        self._chain_id = chain_id
        self._report = report
        self._source = topic.name
        self._database = DatabaseTable(spark, database, chain_id)
        self._topic, self._partition = place_of(topic, chain_id, self._database.head)
        self._options = spark_kafka_options(KafkaConfig.of(topic.kafka))
        bounds = bounds_of(topic, self._topic, self._partition)
        self._log = FollowLog(folder, chain_id)
        step = self._log.step
        self._boundary_id = self._database.head.boundary_id
        is_cut = bool(bounds.first or self._boundary_id)
        self._topic_follower = TopicFollower(
            self._source, step.walk if step else None, is_cut=is_cut
        )
        self._verified_id = step.walk.highest if step else 0
        self._stepped_ns = time.monotonic_ns()
        self._floor = 0
        """The end of the batch before the one that the last frame belongs to."""
        self.count = 0
        """Findings reported by this follower."""

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics at this instant, from any thread; see `chain_kernel.monitoring`."""
        stats = FollowStats(
            verified_id=self._verified_id,
            step_age_seconds=(time.monotonic_ns() - self._stepped_ns) / 1e9,
            findings=self.count,
        )
        for metric in METRICS:
            yield from metric.samples(stats, {"chain": str(self._chain_id)})

    def why_not_ready(self) -> str | None:
        """Return in one line that no record was looked at for long; None when it works."""
        seconds = (time.monotonic_ns() - self._stepped_ns) / 1e9
        if seconds <= SILENT_SECONDS_MAX:
            return None
        return f"chain {self._chain_id}: no record was verified for {seconds:.0f} s"

    def run(self, stop: Event | None = None, *, until_end: bool = False) -> None:
        """Follow until `stop` is set; with `until_end`, only to the present end.

        Raises SourceBroken when topic or database can no longer be read.
        """
        with as_broken(self._source):
            writer = self._records().writeStream.foreachBatch(self._step)
            writer = writer.option("checkpointLocation", self._log.spark_folder)
            if until_end:
                query = writer.trigger(availableNow=True).start()
            else:
                query = writer.trigger(processingTime=f"{TRIGGER_SECONDS} seconds").start()
            try:
                self._wait(query, stop or Event())
            finally:
                query.stop()

    @staticmethod
    def _wait(query: StreamingQuery, stop: Event) -> None:
        """Wait in Python: a signal that came during a call to Java would look like a failure."""
        while query.isActive and not stop.is_set():
            stop.wait(_LOOK_SECONDS)
        failed = query.exception()
        if failed is not None:
            raise failed

    def _records(self) -> DataFrame:
        reader = self._spark.readStream.format("kafka").options(
            **self._options,
            assign=json.dumps({self._topic: [self._partition]}),
            startingOffsets="earliest",
            failOnDataLoss="true",
            maxOffsetsPerTrigger=str(FRAMES_A_STEP),
        )
        return reader.load().select("offset", "value")

    def _step(self, records: DataFrame, number: int) -> None:
        if self._log.is_done(number):
            return
        kept = records.persist()
        try:
            findings = self._judged(kept)
        finally:
            kept.unpersist()
        walk = self._topic_follower.state()
        self._log.write(number, walk, findings)
        self._verified_id, self._stepped_ns = walk.highest, time.monotonic_ns()
        for finding in findings:
            self.count += 1
            self._report(finding)

    def _judged(self, records: DataFrame) -> list[Finding]:
        while True:
            found = self._frames_in(records)
            forged = frozenset(
                row["offset"] for row in found if not (row["is_genuine"] or self._is_archived(row))
            )
            differences = self._differences(records, forged)
            # A boundary is set before rows go, so it is read after them.
            boundary_id = self._database.boundary_now()
            if boundary_id == self._boundary_id:
                break
            self._boundary_id = boundary_id
        true_frames = [
            TopicRecord(**{name: row[name] for name in _FRAME})
            for row in found
            if row["is_genuine"]
        ]
        self._floor = max((r["anchor_id"] for r in found if r["is_genuine"]), default=self._floor)
        # Frames of archived rows are not judged: they leave no gap.
        skips = [*self._database.skips(), (0, boundary_id)]
        return [*self._topic_follower.take(true_frames, skips), *differences]

    def _is_archived(self, frame: Row) -> bool:
        """Return whether a leader has signed a frame whose rows the database has no more."""
        is_old: bool = frame["last_id"] <= self._boundary_id
        return is_old and frame["sender"] == SIGNED

    def _frames_in(self, records: DataFrame) -> list[Row]:
        """Return the frames in the order of offsets, with what the database says of each."""
        # Read each time: leaders change while a topic is followed.
        decoder = heads_decoder(self._chain_id, self._database.frame_keys())
        heads = records.mapInArrow(decoder, HEADS_SCHEMA)
        heads = heads.where(F.col("reason").isNull())
        lowest = heads.agg(F.min("first_pid")).head()
        if lowest is None or lowest[0] is None:
            return []
        # Old batches are read only when old rows were published again.
        floor = self._floor if lowest[0] >= self._floor else 0
        batches = self._database.batches().where(F.col("anchor_id") >= floor)
        joined = heads.join(batches, heads["seal_before"] == batches["anchor"], "left")
        genuine = F.coalesce(is_genuine(), F.lit(False)).alias("is_genuine")
        return joined.select(*_FRAME, "anchor_id", genuine).orderBy("offset").collect()

    def _differences(self, records: DataFrame, forged: frozenset[int]) -> list[Finding]:
        """Compare the rows of all frames, true or forged, with the same rows of the database."""
        decoded = records.mapInArrow(rows_decoder(self._chain_id, {}, forged), ROWS_SCHEMA)
        is_kept = (F.col(STANDING) != FORGED) & (F.col("id") > self._boundary_id)
        rows = decoded.where(is_kept).select(*CONTENT).distinct()
        found = self._difference(rows, None)
        if forged:
            # Their ids may be anywhere, so these rows are read one by one.
            forged_findings = decoded.where(F.col(STANDING) == FORGED).select(*CONTENT).distinct()
            ids = [
                row[0]
                for row in forged_findings.select("id").distinct().limit(FINDINGS_MAX).collect()
            ]
            found += self._difference(forged_findings.where(F.col("id").isin(ids)), ids)
        return found

    def _difference(self, rows: DataFrame, ids: list[int] | None) -> list[Finding]:
        ends = rows.agg(F.min("id"), F.max("id")).head()
        if ends is None or ends[0] is None:
            return []
        if ids is None:
            there = self._database.rows_between(ends[0], ends[1])
        else:
            there = self._database.rows_at(ids)
        pairs = pairs_of(by_id(rows), by_id(there))
        wrong = pairs.where(F.col("kind") != Kind.LACKING.value)
        return list(findings_of(wrong, self._source, self._database.name).kept)
