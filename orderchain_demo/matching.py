"""The demo's matching service: a program that applies a chain received over a bad link.

It keeps books, writes a journal, and stores its state together with the receiver's checkpoint in
one transaction. So it may be killed at any instant: the next start loads the stored state, cuts the
journal back to it, and is handed the rows after it again.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.session import SessionConfig, connected
from chain_kernel.errors import CheckpointLost, OrderchainError
from chain_kernel.files import PRIVATE_MODE
from chain_kernel.sql import RECEIVER_WRITER, load_sql
from chain_kernel.testing.memory_chain import LinkDial
from chainctl.commands.chain.journal import Journal
from chainctl.monitor_server import Address, watched
from orderchain_demo.book import Exchange
from orderchain_demo.link import BadLink
from orderchain_demo.programs import receive, report, run_program

if TYPE_CHECKING:
    from chain_kernel.clients.postgres import Connection
    from chain_kernel.model import Run
    from matcher_receiver import Receiver

SQL: Final = load_sql("orderchain_demo", "queries.sql")

STATEMENT_SECONDS: Final = 30.0
"""Deadline of a save: far longer than a state of many megabytes takes."""

IDLE_SECONDS: Final = 0.1
"""Time without a row after which what is not stored yet is stored."""

REPORT_SECONDS: Final = 0.05
"""Interval of the reports. The demo decides by them when to kill this process: while it works."""

_payload_of = attrgetter("payload")


class MatchingJob(Struct, frozen=True, kw_only=True):
    """The job of the matching service."""

    database: str
    gap_database: str
    kafka: str
    topic: str
    chain_id: int
    receiver: str
    """Name under which state and checkpoint are stored."""
    rows: int
    """It ends once this many rows of the chain are applied, by all its lives together."""
    journal: str
    """Path of the journal that is written."""
    save_rows: int
    """State and checkpoint are stored after this many rows, and when nothing else is to do."""
    dial: LinkDial
    seed: str
    """The seed of the faults of the link."""
    last_key: str
    """Key of the last row: the frame that ends with it is lost."""
    http: Address | None
    """The address at which it serves its metrics."""
    wrong_at_row: int = 0
    """After this many rows it loses an order of one book; 0: never."""


class MatchingReport(Struct, frozen=True, kw_only=True):
    """The progress of the matching service; the last report has a digest."""

    is_live: bool
    """True if it has caught up, and follows the live frames."""
    events: int
    """Rows in the state: those of all its lives, each once."""
    rows: int
    """Rows applied in this life, in so many seconds from the first to the last."""
    seconds: float
    saves: int
    """Times that state and checkpoint were stored, in one transaction each."""
    journal_rows_cut: int
    """Rows after the stored state that were cut off the journal at the start."""
    link: dict[str, int]
    receiver: dict[str, int]
    """Counts of what the link did to frames, and the receiver with what came out."""
    last_gap_shown_by: str
    """The sign that showed the last gap: `frame`, `heartbeat`, `poll`; empty without one."""
    book: dict[str, int] = {}
    digest: str = ""


class MatchingService:
    """One life of the service: applies what a receiver hands on.

    `connection` stores the state, together with the receiver's checkpoint.
    """

    def __init__(
        self,
        job: MatchingJob,
        connection: Connection,
        receiver: Receiver,
        link: BadLink,
        journal: Journal,
        exchange: Exchange,
        rows_cut: int,
    ) -> None:
        self._job = job
        self._connection = connection
        self._receiver = receiver
        self._link = link
        self._journal = journal
        self._exchange = exchange
        self._rows_cut = rows_cut
        self._unsaved: Run | None = None
        self._unsaved_rows = self._rows = self._saves = 0
        self._first_at = self._last_at = self._reported_at = 0.0

    async def run(self) -> None:
        """Work up to the last row of the chain."""
        while self._exchange.events < self._job.rows:
            run = await self._next_run()
            if run is not None:
                self._apply(run)
            if run is None or self._unsaved_rows >= self._job.save_rows:
                await self._save()
            if time.monotonic() - self._reported_at > REPORT_SECONDS:
                self._report()
        await self._save()
        self._report(is_last=True)

    async def _next_run(self) -> Run | None:
        """Return the next run; None when none came within IDLE_SECONDS. The wait loses nothing."""
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                return await anext(self._receiver)
        except TimeoutError:
            return None

    def _apply(self, run: Run) -> None:
        """Write a run to the journal and apply it."""
        self._first_at = self._first_at or time.monotonic()
        self._journal.append(run.events)
        wrong_at = self._job.wrong_at_row
        is_right = self._exchange.events < wrong_at
        self._exchange.apply(map(_payload_of, run.events))
        self._rows += len(run.events)
        self._unsaved, self._unsaved_rows = run, self._unsaved_rows + len(run.events)
        if is_right and self._exchange.events >= wrong_at:
            self._exchange.lose_an_order()
            # Stored at once: with the next orders, the book may be as it would have been.
            self._unsaved_rows += self._job.save_rows
        self._last_at = time.monotonic()

    async def _save(self) -> None:
        """Store state and checkpoint in one transaction, if there is something new.

        The journal goes first: one that is too long is cut back, one too short could not be fixed.
        """
        job, run = self._job, self._unsaved
        if run is None:
            return
        state = synced_length(Path(job.journal)), self._exchange.dump()
        async with self._connection.transaction():
            key = job.chain_id, job.receiver
            await self._connection.execute(SQL["save_state"], *key, run.last_id, *state)
            books = self._exchange.take_touched
            await self._receiver.checkpoint(run, self._connection, states=books)
        self._unsaved, self._unsaved_rows = None, 0
        self._saves += 1

    def _report(self, *, is_last: bool = False) -> None:
        stats, gaps = self._receiver.stats(), list(self._receiver.gaps)
        progress = MatchingReport(
            is_live=self._receiver.live.is_set(),
            events=self._exchange.events,
            rows=self._rows,
            seconds=self._last_at - self._first_at,
            saves=self._saves,
            journal_rows_cut=self._rows_cut,
            link=self._link.counters(),
            receiver={
                "frames_live": stats.frames_live,
                "frames_duplicate": stats.duplicates_dropped,
                "frames_refused": sum(stats.dropped.values()),
                "rows_live": stats.rows_live,
                "rows_filled": stats.rows_filled,
                "rows_caught_up": stats.rows_caught_up,
                "gaps": stats.gaps,
            },
            last_gap_shown_by=gaps[-1].cause if gaps else "",
            book=self._exchange.counters() if is_last else {},
            digest=self._exchange.digest() if is_last else "",
        )
        report(progress)
        self._reported_at = time.monotonic()


def synced_length(journal: Path) -> int:
    """Force a journal to the disk, and return its length in bytes."""
    with journal.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def cut_back(journal: Path, length: int) -> int:
    """Cut off what is after `length` bytes, torn or whole; return how many rows that were.

    Raises OrderchainError when the journal is shorter: rows that are in the stored state would be
    in no journal, since they are not delivered again.
    """
    journal.touch(PRIVATE_MODE)
    size = journal.stat().st_size
    if size < length:
        text = f"{journal} has {size} bytes, but {length} were stored with the state"
        raise OrderchainError(text)
    with journal.open("r+b") as file:
        file.seek(length)
        rows = sum(line.endswith(b"\n") for line in file)
        file.truncate(length)
    return rows


async def serve(job: MatchingJob) -> None:
    """Open the parts of the service, and run it."""
    import gapfill
    import matcher_receiver as matcher

    link = BadLink(
        matcher.KafkaFrameSource(matcher.KafkaSourceConfig(kafka=job.kafka, topic=job.topic)),
        job.dial,
        seed=job.seed,
        last_key=job.last_key,
    )
    database, chain_id, name = job.database, job.chain_id, job.receiver
    checkpoint = matcher.CheckpointConfig(database=database, chain_id=chain_id, name=name)
    gaps = gapfill.GapReaderConfig(database=job.gap_database, chain_id=chain_id)
    receiver = matcher.Receiver(
        matcher.ReceiverConfig(chain_id=chain_id, name=name),
        link,
        gapfill.GapReader(gaps),
        matcher.PostgresCheckpointStore(checkpoint),
    )
    session = SessionConfig(
        database=DatabaseConfig.of(database),
        application_name="orderchain demo",
        role=RECEIVER_WRITER,
        statement_seconds=STATEMENT_SECONDS,
    )
    async with connected(session) as connection, watched(job.http) as watch, receiver:
        watch.add(receiver)
        stored = await connection.fetchrow(SQL["load_state"], chain_id, name)
        head, length, state = stored or (0, 0, None)
        if receiver.head_delivered != head:
            raise CheckpointLost(chain_id, name, head, receiver.head_delivered)
        path = Path(job.journal)
        rows_cut = cut_back(path, length)
        with Journal(path, chain_id) as journal:
            journal.start()
            service = MatchingService(
                job, connection, receiver, link, journal, Exchange(state), rows_cut
            )
            await service.run()


def main() -> None:
    """Do the job that the demo gives."""
    from chainctl.event_loop import run_async

    run_async(serve(receive(MatchingJob)))


if __name__ == "__main__":
    sys.exit(run_program(main))
