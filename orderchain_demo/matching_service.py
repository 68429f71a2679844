"""The demo's matching service: a process that applies a chain received over a bad link.

It keeps books, writes a journal, and stores its state together with the
receiver's checkpoint in one transaction. So it may be killed at any instant: the next start loads
the stored state, cuts the journal back to it, and is handed the rows after it again.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.session import SessionConfig, connected
from chain_kernel.errors import CheckpointLost, OrderchainError
from chain_kernel.sql import RECEIVER_WRITER, load_sql
from chainctl.commands.chain.journal import Journal
from chainctl.monitor_server import watched
from orderchain_demo.lossy_link import BadLink
from orderchain_demo.matching import Matching
from orderchain_demo.processes import (
    FinishCommand,
    MatchingFinished,
    MatchingJob,
    MatchingLive,
    MatchingProgress,
    MatchingResumed,
    Pipe,
    ReceiverCounters,
    run_process,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.model import Run
    from matcher_receiver import Receiver
    from orderchain_demo.processes import ChildCommand


SQL: Final = load_sql("orderchain_demo", "queries.sql")

CONNECT_SECONDS: Final = 10.0
STATEMENT_SECONDS: Final = 30.0
"""Deadline of a save: far longer than a state of many megabytes takes."""


class StoredState(Struct, frozen=True, kw_only=True):
    """The state of the books, and its place in the chain."""

    head: int
    """Id of the last row that is in it; the checkpoint has the same."""
    events: int
    """Rows that are in it."""
    journal_bytes: int
    """Length of the journal that ends with the same row."""
    state: bytes
    """As `Matching.dump` has it."""


class StateStore:
    """The state of one receiver of one chain. Opened by `open_state_store`."""

    def __init__(self, connection: Connection, chain_id: int, receiver: str) -> None:
        self._connection = connection
        self._chain_id = chain_id
        self._receiver = receiver

    async def load(self) -> StoredState | None:
        """Return what was saved last; None when nothing ever was."""
        row = await self._connection.fetchrow(SQL["load_state"], self._chain_id, self._receiver)
        if row is None:
            return None
        head, events, journal_bytes, state = row
        return StoredState(head=head, events=events, journal_bytes=journal_bytes, state=state)

    async def save(self, receiver: Receiver, run: Run, state: StoredState) -> None:
        """Store the state after `run` and the checkpoint of `receiver`, both or neither."""
        async with self._connection.transaction():
            await self._connection.execute(
                SQL["save_state"],
                self._chain_id,
                self._receiver,
                state.head,
                state.events,
                state.journal_bytes,
                state.state,
            )
            await receiver.checkpoint(run, self._connection)


@asynccontextmanager
async def open_state_store(
    database: str | DatabaseConfig, chain_id: int, receiver: str
) -> AsyncIterator[StateStore]:
    """Hold the state store of one receiver. Raises as `chain_kernel.clients.session.connected`."""
    config = SessionConfig(
        database=DatabaseConfig.of(database),
        application_name="orderchain demo",
        role=RECEIVER_WRITER,
        settings={"plan_cache_mode": "auto"},
        connect_seconds=CONNECT_SECONDS,
        statement_seconds=STATEMENT_SECONDS,
    )
    async with connected(config) as connection:
        yield StateStore(connection, chain_id, receiver)


_READ_BYTES: Final = 1024 * 1024


def synced_length(journal: Path) -> int:
    """Force a journal to the disk, and return its length in bytes; 0 for one that is not there."""
    try:
        descriptor = os.open(journal, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def cut_back(journal: Path, length: int) -> int:
    """Cut off what is after `length`, torn or whole; return how many rows that were.

    Raises OrderchainError when the journal is shorter: rows that are in the stored state would be
    in no journal, since they are not delivered again.
    """
    size = journal.stat().st_size if journal.exists() else 0
    if size < length:
        raise OrderchainError(
            f"{journal} has {size} bytes, but {length} were stored with the state"
        )
    if size == length:
        return 0
    rows = 0
    with journal.open("r+b") as file:
        file.seek(length)
        while piece := file.read(_READ_BYTES):
            rows += piece.count(b"\n")
        file.truncate(length)
    return rows


IDLE_SECONDS: Final = 0.1
"""When no row comes for this long, what is not stored yet is stored, and commands are checked."""

REPORT_SECONDS: Final = 0.05
"""Interval of the reports. The demo decides by them when to kill this process: while it works."""

_payload_of = attrgetter("payload")


async def run_matching(pipe: Pipe) -> None:
    """Do the job that the demo gives."""
    job = await pipe.job(MatchingJob)
    async with open_state_store(job.database, job.chain_id, job.receiver) as store:
        matching = Matching()
        stored = await store.load()
        if stored is not None:
            matching.load(stored.state)
        cut = cut_back(Path(job.journal), stored.journal_bytes if stored else 0)
        pipe.report(MatchingResumed(head=stored.head if stored else 0, journal_rows_cut=cut))
        with Journal(Path(job.journal), job.chain_id) as journal:
            journal.start()
            await MatchingService(job, pipe, store, matching, journal).run(stored)


class MatchingService:
    """One life of the service."""

    def __init__(
        self,
        job: MatchingJob,
        pipe: Pipe,
        store: StateStore,
        matching: Matching,
        journal: Journal,
    ) -> None:
        self._job = job
        self._pipe = pipe
        self._store = store
        self._matching = matching
        self._journal = journal
        self._link = _lossy_link(job)
        self._head = 0
        self._events = 0
        self._rows = 0
        self._saves = 0
        self._unsaved: Run | None = None
        self._unsaved_rows = 0
        self._is_live = False
        self._first_at = self._last_at = self._reported_at = 0.0

    async def run(self, stored: StoredState | None) -> None:
        """Work until the demo says where the chain ends, and that row is processed."""
        if stored is not None:
            self._head, self._events = stored.head, stored.events
        command = asyncio.create_task(self._pipe.command(), name="command of the demo")
        try:
            async with (
                watched(self._job.http) as watch,
                _receiver(self._job, self._link) as receiver,
            ):
                watch.add(receiver)
                if receiver.head_delivered != self._head:
                    raise CheckpointLost(
                        self._job.chain_id, self._job.receiver, self._head, receiver.head_delivered
                    )
                await self.work(receiver, command)
        finally:
            command.cancel()

    async def work(self, receiver: Receiver, command: asyncio.Task[ChildCommand]) -> None:
        """Process what `receiver` hands on, until the row that `command` names is processed.

        What the receiver reports of itself does not end it: a run may have been handed on, and not
        be processed yet, while something else is stored.
        """
        upcoming = _Upcoming(receiver)
        try:
            await self._work_until_over(receiver, upcoming, command)
        finally:
            await upcoming.cancel()

    async def _work_until_over(
        self, receiver: Receiver, upcoming: _Upcoming, command: asyncio.Task[ChildCommand]
    ) -> None:
        while not self._is_over(command):
            run = await upcoming.within(IDLE_SECONDS)
            if run is not None:
                self._work_off(run)
            if run is None or self._unsaved_rows >= self._job.save_rows:
                await self._save(receiver)
            self._report(receiver)
        await self._save(receiver)
        self._pipe.report(
            MatchingFinished(
                delivered=self._delivered(receiver),
                last_gap_shown_by=_last_cause(receiver),
                counters=self._matching.counters(),
                digest=self._matching.digest(),
            )
        )

    def _work_off(self, run: Run) -> None:
        """Write a run to the journal and apply it."""
        self._first_at = self._first_at or time.monotonic()
        self._journal.append(run.events)
        self._matching.apply(map(_payload_of, run.events))
        rows = len(run.events)
        self._head = run.last_id
        self._rows += rows
        self._events += rows
        self._unsaved = run
        self._unsaved_rows += rows
        self._last_at = time.monotonic()

    async def _save(self, receiver: Receiver) -> None:
        """Store state and checkpoint, if there is something new.

        The journal goes first: one that is too long is cut back, one too short could not be fixed.
        """
        run = self._unsaved
        if run is None:
            return
        # Reported before it is stored: a killed process's last report is not behind its state.
        self._pipe.report(self._delivered(receiver))
        state = StoredState(
            head=self._head,
            events=self._events,
            journal_bytes=synced_length(Path(self._job.journal)),
            state=self._matching.dump(),
        )
        await self._store.save(receiver, run, state)
        self._unsaved, self._unsaved_rows = None, 0
        self._saves += 1

    def _is_over(self, command: asyncio.Task[ChildCommand]) -> bool:
        """Return whether the demo has said where the chain ends, and that row is processed."""
        if not command.done():
            return False
        given = command.result()
        if not isinstance(given, FinishCommand):
            raise OrderchainError(f"command was {given}, expected where the chain ends")
        return self._head >= given.id

    def _report(self, receiver: Receiver) -> None:
        """Report the progress at intervals, and once that this is live."""
        now = time.monotonic()
        if now - self._reported_at > REPORT_SECONDS:
            self._reported_at = now
            self._pipe.report(self._delivered(receiver))
        if not self._is_live and receiver.live.is_set():
            self._is_live = True
            self._pipe.report(MatchingLive(head=self._head))

    def _delivered(self, receiver: Receiver) -> MatchingProgress:
        stats = receiver.stats()
        return MatchingProgress(
            head=self._head,
            rows=self._rows,
            events=self._events,
            seconds=self._last_at - self._first_at,
            saves=self._saves,
            link=self._link.counters,
            receiver=ReceiverCounters(
                frames_live=stats.frames_live,
                frames_duplicate=stats.duplicates_dropped,
                frames_refused=sum(stats.dropped.values()),
                rows_live=stats.rows_live,
                rows_filled=stats.rows_filled,
                rows_caught_up=stats.rows_caught_up,
                gaps=stats.gaps,
            ),
        )


class _Upcoming:
    """The next run of a receiver, waited for in pieces: the receiver itself is not disturbed."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._task: asyncio.Task[Run] | None = None

    async def within(self, seconds: float) -> Run | None:
        """Return the next run; None when none came within `seconds`."""
        if self._task is None:
            self._task = asyncio.create_task(self._next(), name="next run")
        done, _ = await asyncio.wait([self._task], timeout=seconds)
        if not done:
            return None
        task, self._task = self._task, None
        return task.result()

    async def cancel(self) -> None:
        """Wait no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _next(self) -> Run:
        return await anext(self._receiver)


def _lossy_link(job: MatchingJob) -> BadLink:
    from matcher_receiver import KafkaFrameSource, KafkaSourceConfig

    source = KafkaFrameSource(KafkaSourceConfig(kafka=job.kafka, topic=job.topic))
    return BadLink(source, job.faults, last_key=job.last_key, life=job.life)


def _receiver(job: MatchingJob, link: BadLink) -> Receiver:
    from gapfill import GapReader, GapReaderConfig
    from matcher_receiver import CheckpointConfig, PostgresCheckpointStore, Receiver, ReceiverConfig

    checkpoint = CheckpointConfig(database=job.database, chain_id=job.chain_id, name=job.receiver)
    return Receiver(
        ReceiverConfig(chain_id=job.chain_id, name=job.receiver),
        link,
        GapReader(GapReaderConfig(database=job.gap_database, chain_id=job.chain_id)),
        PostgresCheckpointStore(checkpoint),
    )


def _last_cause(receiver: Receiver) -> str:
    gaps = deque(receiver.gaps, maxlen=1)
    return gaps[0].cause if gaps else ""


if __name__ == "__main__":
    sys.exit(run_process(run_matching))
