"""What was published of a chain, read by plain Python frame by frame, never all at once."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chain_kernel.clients.kafka import (
    AIOKafkaConsumer,
    TopicPartition,
    close_client,
    fetch,
    make_consumer,
    start_client,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import DRIVER_ERRORS, connecting, lasting_refusal
from chain_kernel.errors import OrderchainError, SourceBroken, TopicError
from chain_kernel.text import reason_of
from chain_verifier.checks.neighbours import gathered
from chain_verifier.checks.published import Bounds, PublishedTopic, TopicLog, TopicRecord, place_of
from chain_verifier.checks.topic_frames import (
    FIRST,
    FORGED,
    LATE,
    REPEATED,
    SIGNED,
    FrameKeys,
    events_of,
    header_of,
    standing_of,
)
from chain_verifier.config import CONNECT_SECONDS
from chain_verifier.findings import Finding, Findings, Kind
from chain_verifier.local.table import PAGE_ROWS, SQL, Row, open_scratch

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Coroutine, Iterator, Sequence

    from chain_kernel.frame import FrameHeader
    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.config import TopicSource
    from chain_verifier.local.database import LocalDatabaseTable


_PAGE_RECORDS: Final = 32
"""Records held at a time: each may hold a frame of a thousand rows."""

_FETCH_BYTES: Final = 4 * 2**20
"""Bytes that a broker sends at once; the same amount waits while a page is looked at."""

_SILENCE_S: Final = 30.0
"""How long nothing may arrive before the broker counts as gone: records up to the end exist."""

_CLOSE_S: Final = 5.0


class PublishedRecord(NamedTuple):
    """One record of a topic."""

    offset: int
    value: bytes | None
    time_ms: int
    """When it was sent, or stored if the topic is set to that; milliseconds since 1970."""


class PublishedReader:
    """One partition, read from its beginning as often as needed. `close` ends the connection.

    Raises ConnectError or RetryError if no broker answers as it should, TopicError if the partition
    does not exist, or its records cannot be decoded here.
    """

    def __init__(self, source: TopicSource, topic: str, partition: int) -> None:
        self._name = source.name
        self._kafka = KafkaConfig.of(source.kafka)
        self._connect_seconds = source.connect_seconds
        self._at = TopicPartition(topic, partition)
        self._consumer: AIOKafkaConsumer | None = None
        self._runner = asyncio.Runner()
        try:
            self.bounds: Bounds = self._runner.run(self._open())
        except BaseException:
            self.close()
            raise

    async def _open(self) -> Bounds:
        seconds = self._connect_seconds
        try:
            async with connecting(self._kafka, seconds, doing=f"read topic {self._at.topic}"):
                self._consumer = consumer = make_consumer(
                    self._kafka,
                    "verifier",
                    # What retention removes during the read must not look like never published.
                    auto_offset_reset="none",
                    # The checksum that counts is in the frame.
                    check_crcs=False,
                    fetch_max_bytes=_FETCH_BYTES,
                    max_partition_fetch_bytes=_FETCH_BYTES,
                    # A shorter one would end a fetch that waits for records.
                    request_timeout_ms=math.ceil(1_000 * max(seconds, CONNECT_SECONDS)),
                )
                await start_client(consumer)
                # All topics: a request for a missing one could create it.
                if self._at.topic not in await consumer.topics():
                    raise self._missing()
                consumer.assign([self._at])
                first = await consumer.beginning_offsets([self._at])
                end = await consumer.end_offsets([self._at])
        except TopicError:
            raise
        except OrderchainError as error:
            if self._is_known_to_lack_partition():
                raise self._missing() from error
            raise
        return Bounds(first=first[self._at], end=end[self._at])

    def _is_known_to_lack_partition(self) -> bool:
        """Whether the partition is known not to exist: aiokafka would request it forever."""
        consumer = self._consumer
        known = None if consumer is None else consumer.partitions_for_topic(self._at.topic)
        return known is not None and self._at.partition not in known

    def _missing(self) -> TopicError:
        found = f"{self._at.topic}, partition {self._at.partition}"
        return TopicError("topic", found, "a topic that exists")

    def pages(self) -> Iterator[list[PublishedRecord]]:
        """Yield records from the beginning. Raises SourceBroken."""
        if self._consumer is None or self.bounds.first >= self.bounds.end:
            return
        self._consumer.seek(self._at, self.bounds.first)
        position = self.bounds.first
        while position < self.bounds.end:
            page, position = self._run(self._next(self._consumer, position))
            yield [record for record in page if record.offset < self.bounds.end]

    async def _next(
        self, consumer: AIOKafkaConsumer, position: int
    ) -> tuple[list[PublishedRecord], int]:
        """Return the next records, and the position after them."""
        async with asyncio.timeout(_SILENCE_S):
            while True:
                found = await fetch(consumer, self._at, timeout_ms=1_000, max_records=_PAGE_RECORDS)
                at = await consumer.position(self._at)
                records = [
                    PublishedRecord(record.offset, record.value, record.timestamp)
                    for record in found.get(self._at, ())
                ]
                # Offsets without a record (marks of a transaction) move the position too.
                if records or at > position:
                    return records, at

    def _run(
        self, work: Coroutine[object, object, tuple[list[PublishedRecord], int]]
    ) -> tuple[list[PublishedRecord], int]:
        try:
            return self._runner.run(work)
        except DRIVER_ERRORS as error:
            if refusal := lasting_refusal(error, self._kafka, f"read topic {self._at.topic}"):
                raise refusal from error
            is_silent = isinstance(error, TimeoutError)
            reason = f"no record came for {_SILENCE_S:.0f} s" if is_silent else reason_of(error)
            raise SourceBroken(self._name, reason) from error

    def close(self) -> None:
        """Close the connection; never raises, and waits for at most 5 s."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._runner.run(close_client(consumer, _CLOSE_S))
        self._runner.close()


class LocalTopicTable(PublishedTopic):
    """The rows of a topic, each at its first occurrence; an identical repeat is no further row.

    Opening it reads every record once, to learn which frames there are; the rows are decoded when
    they are looked at. With a `database`, frames that are not signed by one of its leaders, or
    whose seals are not those of its batches, are kept apart. Raises ConnectError, TopicError or
    SourceBroken. `close` ends the connection.
    """

    def __init__(
        self, source: TopicSource, chain_id: int, database: LocalDatabaseTable | None = None
    ) -> None:
        self.name = source.name
        self.chain_id = chain_id
        self._database = database
        self._head = None if database is None else database.head
        topic, partition = place_of(source, chain_id, self._head)
        self._log = TopicLog(self.name, self._head.boundary_id if self._head else 0)
        self._keys: FrameKeys | None = None
        self._changed: sqlite3.Connection | None = None
        with ExitStack() as opened:
            self._reader = PublishedReader(source, topic, partition)
            opened.callback(self._reader.close)
            self._bounds = self._reader.bounds
            if database is not None:
                # Read after the end was fixed: no frame before this end is of a later term.
                self._keys = database.frame_keys()
            for page in self._reader.pages():
                for record in self._judged(page):
                    self._log.take(record)
            self._keep_changed_repeats(opened)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the connection to the broker, and remove what was kept on disk."""
        self._opened.close()

    @property
    def has_forged(self) -> bool:
        """Whether there are frames that the database disowns."""
        return bool(self._log.forged)

    def forged_pages(self) -> Iterator[Sequence[Row]]:
        """Yield the rows of those frames. Raises SourceBroken."""
        return self._standing({FORGED})

    def pages(
        self, ids: tuple[int, int] | None = None, *, content: bool = True
    ) -> Iterator[Sequence[Row]]:
        """Yield the first occurrence of each row, then the repeats with other content."""
        yield from self._standing({FIRST, LATE})
        yield from self._changed_pages()

    def notes(self) -> tuple[str, ...]:
        """Return nothing: `notes_on` returns the notes of a topic."""
        return ()

    def disorder(self, horizon: Horizon) -> Findings:
        """Return what is wrong with the order of the frames. Raises SourceBroken."""
        epochs = self._log.wrong_epochs()
        if not self._log.walk.is_late:
            return gathered(epochs)
        groups: dict[int, list[int]] = {}
        for offset, rows in self._frames({LATE}):
            late = [row[1] for row in rows if row[1] > horizon.start]
            if late:
                highest = self._log.walk.marks[offset].highest_before
                first, last, count = groups.get(highest, [late[0], late[0], 0])
                groups[highest] = [min(first, *late), max(last, *late), count + len(late)]
        found = sorted((first, highest, last, n) for highest, (first, last, n) in groups.items())
        late_findings = [
            Finding(
                kind=Kind.OUT_OF_ORDER,
                source=self.name,
                id=first,
                until_id=last,
                after_id=highest,
                count=count,
            )
            for first, highest, last, count in found
        ]
        return gathered([*epochs, *late_findings])

    def _judged(self, page: Sequence[PublishedRecord]) -> Iterator[TopicRecord]:
        """Yield for each record whether it is a frame, and whether it matches the database."""
        headers = [
            (offset, header_of(value, self.chain_id), value or b"") for offset, value, _ in page
        ]
        asked = [one.first_pid for _, one, _ in headers if not isinstance(one, str)]
        batches: dict[int, Any] = {}
        if self._database is not None and asked:
            batches = self._database.batches_at(asked)
        for offset, header, value in headers:
            if isinstance(header, str):
                yield TopicRecord(offset=offset, reason=header)
                continue
            batch = batches.get(header.first_pid)
            sender = None if self._keys is None else self._keys.sender_of(value, header)
            is_genuine = sender is None or (
                sender == SIGNED and batch is not None and _is_genuine(header, batch)
            )
            epoch = header.epoch if batch is None else batch["batch_epoch"]
            yield TopicRecord(
                offset=offset,
                reason=None,
                is_heartbeat=header.is_heartbeat,
                first_pid=header.first_pid,
                first_id=header.first_id,
                last_id=header.last_id,
                count=header.count,
                epoch=header.epoch,
                sender=sender,
                is_genuine=is_genuine,
                batch_epoch=epoch,
            )

    def _standing(self, standings: Collection[int]) -> Iterator[Sequence[Row]]:
        for _, rows in self._frames(standings):
            yield rows

    def _frames(self, standings: Collection[int]) -> Iterator[tuple[int, list[Row]]]:
        """Yield for each frame its offset, and its rows that have one of `standings`."""
        for page in self._reader.pages():
            for offset, value, _ in page:
                mark = self._log.walk.marks.get(offset)
                is_forged = offset in self._log.forged
                rows = [
                    (self.chain_id, one.id, one.pid, one.key, one.event_time_ns, one.payload)
                    for one in events_of(value, self.chain_id)
                    if standing_of(one.id, mark, is_forged=is_forged) in standings
                ]
                if rows:
                    yield offset, rows

    def _keep_changed_repeats(self, opened: ExitStack) -> None:
        """Store the rows that are repeated with other content on disk.

        Only the ids that occur twice are looked at.
        """
        seen = self._log.seen_again()
        if seen is None:
            return
        low, high = seen
        scratch = opened.enter_context(open_scratch("pairs", self.name))
        for standings, is_first, above in (
            ({FIRST, LATE}, True, low),
            ({REPEATED}, False, self.removed_until),
        ):
            for page in self._standing(standings):
                rows = (
                    (row[1], is_first, row[2], row[3].encode(), row[4], row[5])
                    for row in page
                    if row[1] > above and row[1] <= high
                )
                scratch.executemany(SQL["pair"], rows)
        scratch.execute(SQL["changed"])
        self._changed = scratch

    def _changed_pages(self) -> Iterator[Sequence[Row]]:
        at = 0
        while self._changed is not None:
            found = self._changed.execute(SQL["changed_page"], (at, PAGE_ROWS)).fetchall()
            if not found:
                return
            at = found[-1][0]
            yield [
                (self.chain_id, row_id, pid, key.decode(), event_time_ns, payload)
                for _, row_id, pid, key, event_time_ns, payload in found
            ]


def _is_genuine(header: FrameHeader, batch: Any) -> bool:  # noqa: ANN401 - a row of asyncpg
    """Return whether a frame is (a slice of) the batch after the seal that it names."""
    if header.seal_before != batch["anchor"]:
        return False
    if header.is_heartbeat:
        return bool(header.last_id == batch["anchor_id"])
    if batch["batch_last_id"] is None or header.last_id > batch["batch_last_id"]:
        return False
    is_end = header.last_id == batch["batch_last_id"] and header.seal_after == batch["batch_seal"]
    return is_end or not header.is_batch_end
