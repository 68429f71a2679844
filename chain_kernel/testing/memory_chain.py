"""A chain in memory, with a dial for faults: to test a service that receives, without a server."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.errors import RetryError
from chain_kernel.frame import FrameHeader, encode_frame
from chain_kernel.model import Event
from chain_kernel.seal import SEAL_BYTES, Batch, Columns, column_pages, next_seal
from chain_kernel.testing.memory_log import MemoryFrameSource, MemoryLog
from chain_kernel.testing.memory_receiver import MemoryCheckpointStore, MemoryGapSource
from chain_kernel.testing.memory_store import MemoryDatabase
from chain_kernel.testing.virtual_loop import Process, check_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from chain_kernel.model import Mark
    from chain_kernel.ports import CheckpointStore, FrameSource, GapSource
    from chain_kernel.testing.memory_sql import AnswerTo, MemoryConnection, SqlDatabase


_T = TypeVar("_T")


def sealed(
    events: list[Event], *, chain_id: int, epoch: int, seal_before: bytes, committed_at_us: int
) -> Batch:
    """Return the batch of `events`, at least one, with the seal that follows `seal_before`."""
    columns = Columns.of(events)
    pages = column_pages(columns)
    seal = next_seal(
        seal_before,
        epoch=epoch,
        first_id=events[0].id,
        last_id=events[-1].id,
        row_count=len(events),
        committed_at_us=committed_at_us,
        pages=pages,
    )
    return Batch(
        chain_id=chain_id,
        epoch=epoch,
        pid=events[0].pid,
        first_id=events[0].id,
        last_id=events[-1].id,
        seal_before=seal_before,
        seal=seal,
        committed_at_us=committed_at_us,
        columns=columns,
        pages=pages,
    )


def frame_header(events: Sequence[Event], **fields: object) -> FrameHeader:
    """Return the header of a frame of `events`, at least one; `fields` add to it or change it."""
    return _header(events[0].pid, events[0].id, events[-1].id, len(events), fields)


def heartbeat_header(head: int, **fields: object) -> FrameHeader:
    """Return the header of a heartbeat at the row `head`; `fields` add to it or change it."""
    return _header(head, head, head, 0, fields)


def slices_of(batch: Batch, rows: int, **fields: object) -> list[tuple[FrameHeader, list[Event]]]:
    """Return header and events of each frame of `batch`, with `rows` events at most.

    `fields` are those of the publisher, whose epoch may be another than that of the batch.
    """
    publisher: dict[str, object] = {"publisher_epoch": batch.epoch, **fields}
    found = []
    for at in range(0, batch.row_count, rows):
        events = batch.events[at : at + rows]
        is_batch_end = events[-1].id == batch.last_id
        header = frame_header(
            events,
            chain_id=batch.chain_id,
            epoch=batch.epoch,
            seal_before=batch.seal_before,
            seal_after=batch.seal if is_batch_end else bytes(SEAL_BYTES),
            is_batch_end=is_batch_end,
            **publisher,
        )
        found.append((header, events))
    return found


def _header(
    first_pid: int, first_id: int, last_id: int, count: int, fields: dict[str, object]
) -> FrameHeader:
    header = FrameHeader(
        chain_id=1,
        epoch=1,
        publisher_epoch=1,
        publisher_nonce=bytes(16),
        first_pid=first_pid,
        first_id=first_id,
        last_id=last_id,
        count=count,
        seal_before=bytes(SEAL_BYTES),
    )
    return replace(header, **fields)


_OVERTAKERS_MAX: Final = 12
"""Reads after which a held record arrives at the latest: long after its gap was filled."""


class LinkDial(Struct, kw_only=True):
    """How bad a link is, as shares of records. It may be turned at any time."""

    lost: float = 0.0
    repeated: float = 0.0
    held: float = 0.0
    """Overtaken by those that come after it, by a few or by many."""
    broken: float = 0.0
    """One bit is flipped, or the end is cut off."""

    def heal(self) -> None:
        """From now on, pass everything as it comes."""
        self.lost = self.repeated = self.held = self.broken = 0.0


class LossyLink:
    """Drops, repeats, reorders and breaks records by chance; give it to a `MemoryFrameSource`."""

    def __init__(self, dial: LinkDial, random: Random) -> None:
        self.dial = dial
        self.counts: Counter[str] = Counter()
        """Records by what happened to them: `lost`, `repeated`, `held`, `broken`."""
        self._random = random
        self._held: list[tuple[int, bytes]] = []

    def __call__(self, records: list[bytes]) -> list[bytes | None]:
        """Return what comes out when `records` go in, with the held ones whose turn it is."""
        passed: list[bytes | None] = []
        for record in records:
            self._pass(record, passed)
        passed += [record for left, record in self._held if left <= 0]
        self._held = [(left - 1, record) for left, record in self._held if left > 0]
        return passed

    def _pass(self, record: bytes, passed: list[bytes | None]) -> None:
        dial, draw = self.dial, self._random.random
        if draw() < dial.lost:
            self.counts["lost"] += 1
            return
        if record and draw() < dial.broken:
            self.counts["broken"] += 1
            record = self._broken(record)
        if draw() < dial.held:
            self.counts["held"] += 1
            self._held.append((self._random.randrange(_OVERTAKERS_MAX), record))
        else:
            passed.append(record)
        if draw() < dial.repeated:
            self.counts["repeated"] += 1
            passed.append(record)

    def _broken(self, record: bytes) -> bytes:
        at = self._random.randrange(len(record))
        if self._random.random() < 0.5:
            return record[:at]
        flipped = bytearray(record)
        flipped[at] ^= 1 << self._random.randrange(8)
        return bytes(flipped)


CHAIN_ID: Final = 1
SLICE_ROWS: Final = 4
"""Rows of a frame: few, so that a handful of orders makes several frames to lose."""

_ANSWER_SECONDS_MAX: Final = 0.002

FIRST_COMMIT_US: Final = 1_750_000_000_000_000


class Service:
    """A service under test, run like a program: it can be killed."""

    def __init__(self, process: Process, task: asyncio.Task[Any], tables: SqlDatabase) -> None:
        self._process = process
        self._tables = tables
        self.task = task
        """What it runs; await it to see it end, or fail."""

    async def kill(self) -> None:
        """End it as kill -9 would: nothing that it does from now on reaches a server."""
        self._process.kill()
        self._tables.end(self._process)
        with suppress(asyncio.CancelledError, Exception):
            await self.task


class MemoryChain:
    """What a sequencer would commit and publish, and the ports by which a receiver reads it.

    `dial` sets which share of frames is lost, repeated, held back or broken between broker and
    receiver; it may be turned at any time. The same seed draws the same faults.
    """

    def __init__(self, seed: int = 0) -> None:
        self.chain_id = CHAIN_ID
        self.dial = LinkDial()
        self.committed: list[Event] = []
        """All rows: what a receiver has to hand on, in this order."""
        self._random = Random(seed)  # noqa: S311 - faults, not secrets
        self._database = MemoryDatabase(seed)
        self._chain = self._database.create(CHAIN_ID)
        self._frame_key = self._chain.begin_term(self._database.draw_nonce()).frame_key
        self._log = MemoryLog()
        self.is_database_away = False
        """Whether the database does not answer; may be set."""
        self._services = 0
        # Here, for it imports the driver, whose errors it raises.
        from chain_kernel.testing.memory_sql import SqlDatabase

        self._tables = SqlDatabase(Random(seed))  # noqa: S311

    # -- the sequencer's side ------------------------------------------------------------------

    def commit(self, payloads: Sequence[bytes], *, publish: bool = True) -> list[Event]:
        """Commit orders as one batch, publish it, and return the rows.

        Ids skip numbers, as real ones may. Without `publish` its frames are never sent: only a
        heartbeat, a later frame or the database shows the batch.
        """
        pid = before = self._chain.last_id
        events = []
        for number, payload in enumerate(payloads, start=len(self.committed) + 1):
            row_id = pid + self._random.choice((1, 1, 1, 3))
            events.append(Event(row_id, pid, f"order-{number}", FIRST_COMMIT_US * 1_000, payload))
            pid = row_id
        batch = sealed(
            events,
            chain_id=CHAIN_ID,
            epoch=self._chain.epoch,
            seal_before=self._chain.last_seal,
            committed_at_us=FIRST_COMMIT_US + len(self._chain.batches),
        )
        self._chain.store(batch, before, ())
        self.committed += events
        if publish:
            self._log.append(self._frames(batch))
        return events

    def heartbeat(self) -> None:
        """Publish the head: what shows a lost last frame."""
        head, seal = self._chain.last_id, self._chain.last_seal
        header = heartbeat_header(
            head,
            epoch=self._chain.epoch,
            publisher_epoch=self._chain.epoch,
            seal_before=seal,
            publisher_nonce=self._chain.nonce,
        )
        self._log.append([encode_frame(header, (), self._frame_key)])

    @property
    def is_broker_away(self) -> bool:
        """Whether the broker does not answer; may be set."""
        return self._log.is_away

    @is_broker_away.setter
    def is_broker_away(self, is_away: bool) -> None:
        self._log.is_away = is_away
        self._log.wake_readers()

    # -- the receiver's side -------------------------------------------------------------------

    def frames(self) -> FrameSource:
        """Return a consumer that the dial affects; each receiver needs its own."""
        return MemoryFrameSource(self._log, LossyLink(self.dial, self._random))

    def gap_source(self) -> GapSource:
        """Return a reader of missing rows; each receiver needs its own."""
        return MemoryGapSource(lambda: self._chain, ask=self._ask)

    def checkpoints(self, receiver: str = "receiver") -> CheckpointStore:
        """Return the store of one receiver's place, which outlives the receiver."""
        return MemoryCheckpointStore(self._database, CHAIN_ID, receiver, self._ask)

    def checkpoint(self, receiver: str = "receiver") -> Mark | None:
        """Return what is stored of a receiver's place now."""
        return self._chain.checkpoints.get(receiver)

    @property
    def tables(self) -> dict[str, Any]:
        """What has committed of the service's own tables: fill it before, compare it after."""
        return self._tables.tables

    def answer(self, statement: str, function: AnswerTo) -> None:
        """Make a statement of the service do what `function(tables, *arguments)` does.

        There is no SQL here. It returns the statement's rows; a statement without an answer raises
        SettingError.
        """
        self._tables.answer(statement, function)

    async def connect(self) -> MemoryConnection:
        """Return a connection as `asyncpg.connect` does, to be given to `Receiver.checkpoint`, too.

        Outside of a transaction that is refused, as by PostgreSQL's store.
        """
        return self._tables.connect()

    def start(self, main: Coroutine[Any, Any, object]) -> Service:
        """Run `main` as a program of its own, which can be killed."""
        self._services += 1
        process = Process(f"service {self._services}")
        return Service(process, process.run(main), self._tables)

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Do `work` at the database, which takes a moment, and nothing for a killed service."""
        await asyncio.sleep(self._random.uniform(0.0, _ANSWER_SECONDS_MAX))
        check_alive()
        if self.is_database_away:
            raise RetryError("the database is away")
        return await work()

    def _frames(self, batch: Batch) -> list[bytes]:
        return [
            encode_frame(header, events, self._frame_key)
            for header, events in slices_of(batch, SLICE_ROWS, publisher_nonce=self._chain.nonce)
        ]
