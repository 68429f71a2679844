"""Reads orders from a topic and puts them into the chain, each once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct as Packer
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from chain_kernel.clock import Backoff
from chain_kernel.errors import ConnectError, IntakeLost, OrderError, RetryError, StoppedError
from chain_kernel.model import SEPARATOR, IntakeMark
from chain_kernel.monitoring import counter_field, metrics
from chain_kernel.tasks import HomeLoop
from chain_kernel.text import SummedLog, counted
from sequencer.intake.reader import TopicReader
from sequencer.order import Order, columns_from
from sequencer.submission import Refusal, check_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from random import Random

    from chain_kernel.monitoring import Sample
    from chain_kernel.ports import RecordSource, SourceRecord
    from sequencer.config import TopicIntakeConfig
    from sequencer.order import Ack, OrderColumns
    from sequencer.service import Sequencer


_DIGEST: Final = Packer(">q32s")
_RECORD: Final = Packer(">qqqq")
_ABSENT: Final = -1
_KEY_BYTES_SHOWN: Final = 64


def source_of(topic: str, partition: int) -> str:
    """Return the name under which a partition's mark and rejects are stored."""
    return f"topic:{topic}:{partition}"


class OrderMaker:
    """Makes orders from the records of one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self._reserved = f"{topic}/"
        self._reserved_bytes = self._reserved.encode()
        self._keyless = f"{topic}/{partition}{SEPARATOR}"

    def order_of(self, record: SourceRecord) -> Order | Refusal:
        """Return the order that `record` holds, or why it holds none.

        Its key is the record's key; without one it is `TOPIC/PARTITION#OFFSET`, which costs no
        look-up, since offsets rise.
        """
        try:
            key = self._key_of(record)
        except UnicodeDecodeError:
            error = OrderError("key", (record.key or b"")[:_KEY_BYTES_SHOWN], "UTF-8 text")
            return Refusal(None, error)
        if self._is_reserved(record.key):
            # Otherwise a record might claim the key of another, or a number above all of them.
            expected = f"one that does not begin with {self._reserved}, as do those made here"
            return Refusal(key, OrderError("key", key, expected))
        if record.value is None:
            return Refusal(key, OrderError("value", None, "an order"))
        return Order(key, record.value, _time_ns(record))

    def orders_of(
        self, records: Sequence[SourceRecord]
    ) -> OrderColumns | Sequence[Order | Refusal]:
        """Return the orders of `records`: as columns, or one by one where one holds none."""
        try:
            if not any([self._is_reserved(record.key) for record in records]):
                return columns_from(
                    [self._key_of(record) for record in records],
                    cast("list[bytes]", [record.value for record in records]),
                    [_time_ns(record) for record in records],
                )
        except (OrderError, UnicodeDecodeError):
            pass  # the loop below finds the record and its field
        return list(map(self.order_of, records))

    def _is_reserved(self, key: bytes | None) -> bool:
        return key is not None and key.startswith(self._reserved_bytes)

    def _key_of(self, record: SourceRecord) -> str:
        """Return the key of a record. Raises UnicodeDecodeError."""
        return f"{self._keyless}{record.offset}" if record.key is None else record.key.decode()


def _time_ns(record: SourceRecord) -> int | None:
    return record.timestamp * 1_000_000 if record.timestamp >= 0 else None


def intake_mark_after(
    mark: IntakeMark, records: Sequence[SourceRecord], next_offset: int
) -> IntakeMark:
    """Return the mark after `records`, which follow `mark`; its digest is the last record's."""
    digest = record_digest(records[-1]) if records else mark.digest
    return IntakeMark(
        source=mark.source, position=next_offset, digest=digest, previous=mark.position
    )


def record_digest(record: SourceRecord) -> bytes:
    """Return what identifies a record: its offset, and a hash of all that it holds."""
    key, value = record.key, record.value
    sizes = (_ABSENT if key is None else len(key), _ABSENT if value is None else len(value))
    head = _RECORD.pack(record.offset, record.timestamp, *sizes)
    return _DIGEST.pack(record.offset, sha256(head + (key or b"") + (value or b"")).digest())


def start_offset(mark: IntakeMark, first: int, end: int) -> int:
    """Return where to continue after `mark`, in a partition that holds `first` to before `end`.

    That is the last record that was taken, if it is still there: it shows whether this is the log
    that was read before. Raises IntakeLost if records are missing.
    """
    if end < mark.position:
        raise IntakeLost(
            mark.source, mark.position, f"it ends at {end}: it was truncated or made again"
        )
    if first > mark.position:
        raise IntakeLost(
            mark.source, mark.position, f"it begins at {first}: records were deleted before that"
        )
    last_offset = last_offset_of(mark)
    return mark.position if last_offset is None or last_offset < first else last_offset


def last_offset_of(mark: IntakeMark) -> int | None:
    """Return the offset of the last record that was taken, None if there is none."""
    return int(_DIGEST.unpack(mark.digest)[0]) if mark.digest else None


def without_known(mark: IntakeMark, records: Sequence[SourceRecord]) -> Sequence[SourceRecord]:
    """Return `records`, which begin with the last one that was taken, without that one.

    Raises IntakeLost if it is not the one that was taken: this is another log.
    """
    if not records or record_digest(records[0]) != mark.digest:
        raise IntakeLost(
            mark.source,
            mark.position,
            f"the record at {last_offset_of(mark)} is another one: the topic was made again",
        )
    return records[1:]


def first_marks(
    topic: str,
    stored: Mapping[int, IntakeMark],
    bounds: Mapping[int, tuple[int, int]],
    chosen: Mapping[int, int],
) -> dict[int, IntakeMark]:
    """Return where to begin in the partitions that have no mark yet.

    That is their first record, or the `chosen` place only if the topic was never read: a partition
    that was added later is read from its beginning.
    """
    return {
        partition: IntakeMark(
            source=source_of(topic, partition),
            position=first if stored else chosen.get(partition, first),
            digest=b"",
        )
        for partition, (first, _) in bounds.items()
        if partition not in stored
    }


_log = logging.getLogger(__name__)

IN_FLIGHT: Final = 3
"""Portions handed to the sequencer and not committed yet: one commits, one is encoded after it, one
waits, so that the sequencer never waits for the topic. More would only hold memory."""

_WAIT_SECONDS: Final = 0.5
_IDLE_SECONDS: Final = 2.0
"""Time of one request for records, with and without orders in flight; meanwhile nothing else is
checked."""

_RETRY_SECONDS: Final = 0.2
_RETRY_SECONDS_MAX: Final = 5.0
"""Back-off while the broker is away: doubles up to this, so that its return is noticed soon."""


@dataclass(frozen=True, kw_only=True)
class TopicIntakeStats:
    """Counts of an intake since it was created."""

    records: int = counter_field("Records of the topic taken and settled.")
    rejects: int = counter_field("Those that were stored as rejects.")
    interruptions: int = counter_field(
        "Times that reading began again: the broker was away, or the topic grew."
    )


METRICS: Final = metrics("orderchain_intake", TopicIntakeStats)
"""Metrics of an intake, with the label `topic`."""


class _HandedRecords(NamedTuple):
    """Records of one partition that were handed to the sequencer."""

    source: str
    positions: Sequence[int]
    outcomes: asyncio.Future[Sequence[Ack | OrderError]]


class TopicIntake:
    """Feeds the sequencer of one chain with the records of one topic.

    The offsets are stored in the transaction of the batch that the records became, so a record is
    taken once whatever happens in between. Nothing else may feed the chain from this topic.
    """

    def __init__(
        self,
        config: TopicIntakeConfig,
        sequencer: Sequencer,
        *,
        source: RecordSource | None = None,
        on_progress: Callable[[TopicIntakeStats], None] | None = None,
        random: Random | None = None,
    ) -> None:
        self._config = config
        self._backoff = Backoff(_RETRY_SECONDS, _RETRY_SECONDS_MAX, random=random)
        self._sequencer = sequencer
        self._source = TopicReader(config) if source is None else source
        self._on_progress = on_progress
        # Invariant: every record before a mark was handed over, none after it was.
        self._marks: dict[int, IntakeMark] = {}
        # Where partitions without a mark begin. It stays as it was first found: a later look at the
        # topic would find another end, and skip what came in between.
        self._first: dict[int, IntakeMark] = {}
        # Partitions that are read from the last record taken on, which is compared and left out.
        self._known: set[int] = set()
        self._makers: dict[int, OrderMaker] = {}
        self._in_flight: deque[list[_HandedRecords]] = deque()
        self._home = HomeLoop(f"intake of {config.topic}")
        self._is_stopping = asyncio.Event()
        self._records = 0
        self._rejects = 0
        self._refused = SummedLog(_log, logging.WARNING)
        self._outage = SummedLog(_log, logging.WARNING)
        self._interruptions = 0

    def stats(self) -> TopicIntakeStats:
        """Return the state at this instant."""
        return TopicIntakeStats(
            records=self._records, rejects=self._rejects, interruptions=self._interruptions
        )

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics at this instant, for a `Monitor`."""
        stats = self.stats()
        for metric in METRICS:
            yield from metric.samples(stats, {"topic": self._config.topic})

    def why_not_ready(self) -> str | None:
        """Return in one line why it takes nothing: it was stopped. None while it may run."""
        return f"intake of {self._config.topic}: stopped" if self._is_stopping.is_set() else None

    def stop(self) -> None:
        """Make `run` return once what was handed over is settled.

        Raises:
            SettingError: in another event loop or thread than that of `run`:
                `loop.call_soon_threadsafe(intake.stop)`.
        """
        self._home.check()
        self._is_stopping.set()

    async def run(self) -> None:
        """Read until stopped or cancelled; the sequencer must be open.

        After the start, and where the sequencer is a standby, a broker that is away is retried: a
        standby takes over when something has failed, and may find that more has.

        Raises:
            IntakeLost: the topic lacks what comes next.
            IntakeMoved: another intake reads it into this chain.
            ConnectError: the settings cannot lead to a connection.
            TopicError: the topic is unfit, or has a record that this process cannot decode.
            StoppedError: a task of its own was cancelled, or the sequencer closed.
            SettingError: it runs in another event loop or thread.
            OrderchainError: what ended the leadership.
        """
        self._home.join()
        reading = asyncio.create_task(self._read(), name="orderchain intake")
        leading = asyncio.create_task(self._sequencer.until_stopped())
        stopping = asyncio.create_task(self._is_stopping.wait())
        tasks = (reading, leading, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # One by one, and the reader first: what it has handed over must be known.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._source.close()
            await self._settle_within(self._config.stop_seconds)
            self._home.leave()
        if not leading.cancelled():
            leading.result()
            raise StoppedError("the sequencer was closed")
        if not reading.cancelled():
            reading.result()
        elif stopping.cancelled():
            # Neither the sequencer's end nor a stop: whatever did it, nothing reads the topic now.
            raise StoppedError(f"the intake of {self._config.topic}: its task was cancelled")

    async def _read(self) -> None:
        """Read; begin again after an error if that is all that is needed."""
        may_wait = self._sequencer.is_standby
        while True:
            settled = self._records
            try:
                await self._begin()
                may_wait = True
                self._outage.log()
                while True:
                    await self._take_portion()
            except (RetryError, ConnectError) as error:
                if not may_wait and isinstance(error, ConnectError):
                    raise
                self._interruptions += 1
                self._outage.repeat(f"intake of {self._config.topic}: {error}; trying again")
            if self._records > settled:
                self._backoff.reset()
            await asyncio.sleep(self._backoff.next_seconds())

    async def _begin(self) -> None:
        """Go to the place after what was taken before, in every partition."""
        topic = self._config.topic
        bounds = await self._source.open()
        is_new = not self._first
        if not self._marks:
            # One more than there are: a partition can only be removed together with the topic.
            self._marks = await self._stored(range(len(bounds) + 1))
            if any(
                partition not in bounds or mark.position > bounds[partition][1]
                for partition, mark in self._marks.items()
            ):
                # The bounds are older than the marks: another leader may have taken records since.
                bounds = await self._source.open()
        gone = self._marks.keys() - bounds.keys()
        if gone:
            mark = self._marks[min(gone)]
            raise IntakeLost(mark.source, mark.position, "the topic has fewer partitions now")
        chosen = await self._chosen(bounds) if is_new and not self._marks else {}
        new = {
            partition: self._first.setdefault(partition, mark)
            for partition, mark in first_marks(topic, self._marks, bounds, chosen).items()
        }
        self._makers = {partition: OrderMaker(topic, partition) for partition in bounds}
        offsets: dict[int, int] = {}
        for partition, (first, end) in bounds.items():
            mark = self._marks.get(partition) or new[partition]
            offsets[partition] = start_offset(mark, first, end)
        self._known = {
            partition
            for partition, mark in self._marks.items()
            if last_offset_of(mark) == offsets[partition]
        }
        await self._source.seek(offsets)
        await self._store_first(new)

    async def _chosen(self, bounds: Mapping[int, tuple[int, int]]) -> Mapping[int, int]:
        """Return where the config begins in a topic that was never read; empty: at its first."""
        start_at = self._config.start_at
        if start_at.time_ms is not None:
            return await self._source.offsets_at(start_at.time_ms)
        return {} if start_at.at == "beginning" else {at: end for at, (_, end) in bounds.items()}

    async def _stored(self, partitions: Sequence[int]) -> dict[int, IntakeMark]:
        """Return how far the topic was taken into the chain, by all earlier leaders."""
        sources = {partition: source_of(self._config.topic, partition) for partition in partitions}
        marks = {
            partition: await self._sequencer.intake(source) for partition, source in sources.items()
        }
        return {partition: mark for partition, mark in marks.items() if mark is not None}

    async def _store_first(self, marks: dict[int, IntakeMark]) -> None:
        """Store where new partitions begin: a restart must not choose another place.

        All are queued in one turn of the loop, if there is room, and stored in one transaction.
        """
        portion: list[_HandedRecords] = []
        self._in_flight.append(portion)
        for partition, mark in marks.items():
            portion.append(await self._queue(partition, (), (), mark=mark))

    async def _take_portion(self) -> None:
        """Hand over the next records as soon as few enough are in flight."""
        while len(self._in_flight) >= IN_FLIGHT:
            await self._settle_next()
        at_most = min(self._config.records_max, self._sequencer.batch_rows_max)
        wait = _WAIT_SECONDS if self._in_flight else _IDLE_SECONDS
        found = await self._source.records(at_most, wait)
        portion: list[_HandedRecords] = []
        if found:
            # Before the first await: what is cancelled in between is settled too.
            self._in_flight.append(portion)
        for partition, (records, next_offset) in found.items():
            mark = self._marks[partition]
            if partition in self._known:
                records = without_known(mark, records)
                self._known.remove(partition)
            if records or next_offset > mark.position:
                await self._hand_over(partition, records, next_offset, portion)
        while self._in_flight and all(part.outcomes.done() for part in self._in_flight[0]):
            await self._settle_next()

    async def _hand_over(
        self,
        partition: int,
        records: Sequence[SourceRecord],
        next_offset: int,
        portion: list[_HandedRecords],
    ) -> None:
        """Queue the orders of `records`: in halves, if they have more bytes than a call may."""
        orders = self._makers[partition].orders_of(records) if records else ()
        if len(records) > 1 and check_each(orders).bytes > self._sequencer.batch_bytes_max:
            half = len(records) // 2
            await self._hand_over(partition, records[:half], records[half].offset, portion)
            await self._hand_over(partition, records[half:], next_offset, portion)
            return
        mark = intake_mark_after(self._marks[partition], records, next_offset)
        positions = [record.offset for record in records]
        portion.append(await self._queue(partition, orders, positions, mark=mark))

    async def _queue(
        self,
        partition: int,
        orders: OrderColumns | Sequence[Order | Refusal],
        positions: Sequence[int],
        *,
        mark: IntakeMark,
    ) -> _HandedRecords:
        outcomes = await self._sequencer.queue_each(orders, intake=mark, positions=positions)
        # Only now: orders that were not taken must never be skipped.
        self._marks[partition] = mark
        return _HandedRecords(mark.source, positions, outcomes)

    async def _settle_next(self) -> None:
        """Wait for the oldest portion's commit, and count it. Raises what ended the leadership."""
        portion = self._in_flight[0]
        while portion:
            part = portion[0]
            # A stop that cancels this must not cancel the outcomes: they are still to be counted.
            await asyncio.wait([part.outcomes])
            try:
                outcomes = part.outcomes.result()
            except RetryError as error:
                # The sequencer has retried for as long as it may: to continue would skip these.
                raise StoppedError(f"{part.source}: {error}") from error
            self._count(part, outcomes)
            del portion[0]
        self._in_flight.popleft()
        if self._on_progress is not None:
            self._on_progress(self.stats())

    def _count(self, part: _HandedRecords, outcomes: Sequence[object]) -> None:
        refused = [
            (position, outcome)
            for position, outcome in zip(part.positions, outcomes, strict=True)
            if isinstance(outcome, OrderError)
        ]
        self._records += len(outcomes)
        self._rejects += len(refused)
        if refused:
            position, error = refused[0]
            self._refused.add(
                f"{part.source} {type(error).__name__}",
                len(refused),
                lambda count: (
                    f"{part.source}: rejected {counted(count, 'record')}, "
                    f"such as the one at {position}: {error}"
                ),
            )

    async def _settle_within(self, seconds: float) -> None:
        """Wait for what is in flight, then drop it: the sequencer commits it on its own."""
        waiting = [part.outcomes for portion in self._in_flight for part in portion]
        if waiting:
            await asyncio.wait(waiting, timeout=seconds)
        for portion in self._in_flight:
            for part in portion:
                if not part.outcomes.done():
                    part.outcomes.cancel()
                elif not part.outcomes.cancelled() and part.outcomes.exception() is None:
                    self._count(part, part.outcomes.result())
        self._in_flight.clear()
        self._refused.log()
