"""The chain in PostgreSQL, as its leader writes it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from orderchain.batch import Batch, IntakeMark, LeaseSight, Term
from orderchain.clients.postgres import DRIVER_ERRORS
from orderchain.clock import SystemClock
from orderchain.errors import ChainMissing, Fenced, RetryError
from orderchain.event import Event
from orderchain.page_image import event_pages
from orderchain.sql import load_sql
from sequencer.commit import Commit, intake_refusal, mark_values, reject_values
from sequencer.leader_session import GIVEN_UP, LeaderSession
from sequencer.taking_over import Secrets, raise_epoch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from orderchain.clients.postgres import Connection, Record
    from orderchain.clock import Clock
    from sequencer.config import SequencerConfig

_SQL: Final = load_sql("sequencer", "queries.sql")
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class PostgresChainStore:
    """The primary, for one chain, over one direct connection; see `orderchain.ports.ChainStore`.

    After an error in a commit the connection is gone, and `take_over_again` makes a new one: only
    the epoch that it raises tells for sure what became of the old transaction.
    """

    def __init__(self, config: SequencerConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._session = LeaderSession(config, clock or SystemClock())
        self._term: Term | None = None
        # Of the take-over tried last: its answer may have been lost, then it is ours all the same.
        self._drawn_nonce = b""
        self._extended_until = -1
        # Sent behind the commit before it: its outcome is still to be asked for.
        self._ahead: Commit | None = None
        # Whether the commit under way leaves the driver alone, so that another may follow.
        self._is_pipelining = False

    async def look(self) -> LeaseSight:
        """Return who leads; see `orderchain.ports.ChainStore.look`."""
        if not self._session.is_open:
            await self._session.open()
        row = await self._session.fetch_row("look", self._config.chain_id)
        if row is None:
            raise ChainMissing(self._config.chain_id)
        return LeaseSight(**row)

    async def take_over(self, owner: str, seen: LeaseSight) -> Term:
        """Raise the epoch over what was seen; see `orderchain.ports.ChainStore.take_over`."""
        await self.look()
        return await self._raise_epoch(owner, seen.epoch, seen.nonce, seen.counter)

    async def take_over_again(self, owner: str, held: Term) -> Term:
        """Raise our own epoch; see `orderchain.ports.ChainStore.take_over_again`."""
        await self.close()
        sight = await self.look()
        if sight.nonce == self._drawn_nonce:
            return await self._raise_epoch(owner, sight.epoch, sight.nonce, None)
        return await self._raise_epoch(owner, held.epoch, held.nonce, None)

    async def commit(
        self,
        batch: Batch,
        *,
        published_id: int,
        intake: Sequence[IntakeMark] = (),
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Commit `batch` behind the fence; see `orderchain.ports.ChainStore.commit`."""
        async with self._session.lock:
            ahead = self._ahead
            if ahead is not None and ahead.batch is batch:
                self._ahead = None
                await self._end(ahead, ahead.answered(meanwhile))
                return
            term = self._leading()
            work = Commit(term, batch, published_id=published_id, intake=intake)
            await self._end(work, self._commit(work, meanwhile))

    def send_ahead(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> bool:
        """Send a commit behind the one under way; see `orderchain.ports.ChainStore.send_ahead`."""
        if self._ahead is not None or not self._is_pipelining or not self._session.is_open:
            return False
        work = Commit(self._leading(), batch, published_id=published_id, intake=intake)
        if work.is_few_rows or batch.last_id >= self._extended_until:
            return False
        work.send_ahead(self._session.pipeline)
        self._ahead = work
        return True

    async def move_intake(self, intake: Sequence[IntakeMark]) -> None:
        """Store intake marks alone; see `orderchain.ports.ChainStore.move_intake`."""
        async with self._session.lock:
            term = self._leading()
            try:
                async with asyncio.timeout(self._config.commit_seconds):
                    connection = await self._session.idle()
                    async with connection.transaction():
                        await _move_intake(connection, term, intake)
                    self._session.check_replicated()
            except BaseException as error:
                # Also where the caller is gone: a transaction may be open.
                self._session.abandon()
                if isinstance(error, DRIVER_ERRORS):
                    failure = self._session.refusal("the intake's mark", error)
                    raise (intake_refusal(error, intake) or failure) from error
                raise

    async def has_committed(self, batch: Batch) -> bool:
        """Say whether `batch` is in the chain; see `orderchain.ports.ChainStore.has_committed`."""
        if not self._session.is_open:
            # Another leader was faster than our take-over: what became of our batch is told to
            # whoever may read. Whoever commits behind this must meet the fence, so the session is
            # made like every other.
            await self.look()
        row = await self._session.fetch_row("batch_after", batch.chain_id, batch.pid)
        if row is None or (row["epoch"], row["seal"]) != (batch.epoch, batch.seal):
            return False
        # It is there, which is not to say that the standbys have it that its commit waited for:
        # that wait may have been cancelled.
        await self._session.fetch_row("await_standbys")
        return True

    async def mark_published(self, published_id: int) -> None:
        """Store head_published; see `orderchain.ports.ChainStore.mark_published`."""
        term = self._leading()
        row = await self._session.fetch_row(
            "mark_published", term.chain_id, term.epoch, term.nonce, published_id
        )
        if row is None:
            raise Fenced(term.chain_id, term.epoch)

    async def skip_published(self, after_id: int, until_id: int) -> None:
        """Record a range that is not published; see `orderchain.ports.ChainStore`."""
        term = self._leading()
        row = await self._session.fetch_row(
            "skip_published", term.chain_id, term.epoch, term.nonce, after_id, until_id
        )
        if row is None:
            raise Fenced(term.chain_id, term.epoch)

    async def rows_after(self, after_id: int, at_most: int) -> int:
        """Count the rows behind `after_id`; see `orderchain.ports.ChainStore.rows_after`."""
        term = self._leading()
        row = await self._session.fetch_row("rows_after", term.chain_id, after_id, at_most)
        return int(row[0]) if row else 0

    async def batches(self, after_id: int) -> AsyncIterator[Batch]:
        """Yield the batches behind `after_id`; see `orderchain.ports.ChainStore.batches`."""
        term = self._leading()
        while row := await self._session.fetch_row("next_batch", term.chain_id, after_id):
            yield await self._read_batch(term.chain_id, row)
            after_id = row["last_id"]

    async def intake(self, source: str) -> IntakeMark | None:
        """Return how far `source` was read; see `orderchain.ports.ChainStore.intake`."""
        row = await self._session.fetch_row("intake", self._config.chain_id, source)
        if row is None:
            return None
        return IntakeMark(source=source, position=row["position"], digest=row["digest"])

    async def close(self) -> None:
        """Close the connection within a second, or drop it."""
        await self._session.close()

    async def _commit(self, work: Commit, meanwhile: Callable[[], None] | None) -> None:
        connection = await self._session.idle()
        await self._extend(connection, work.batch)
        await work.send(connection, self._session.pipeline, meanwhile)
        self._session.check_replicated()

    async def _end(self, work: Commit, ending: Coroutine[object, object, None]) -> None:
        """Await the end of `work`, whose outcome is raised unless it was done."""
        self._is_pipelining = not work.is_few_rows
        try:
            async with asyncio.timeout(self._config.commit_seconds):
                await ending
        except Exception as error:
            self._session.abandon()
            outcome = work.failure(error) or self._session.refusal("the commit", error)
            if outcome is error:
                raise
            raise outcome from error
        except BaseException:
            self._session.abandon()
            raise
        finally:
            self._is_pipelining = False

    async def _raise_epoch(self, owner: str, epoch: int, nonce: bytes, counter: int | None) -> Term:
        drawn = Secrets.draw()
        self._drawn_nonce = drawn.nonce
        seen = (self._config.chain_id, epoch, nonce)
        try:
            async with self._session.lock, asyncio.timeout(self._config.commit_seconds):
                connection = await self._session.idle()
                database_id = self._session.database_id
                term = await raise_epoch(connection, database_id, owner, drawn, seen, counter)
                # What a take-over finds counts as replicated: it was, if this commit is.
                self._session.check_replicated()
        except BaseException as error:
            self._session.abandon()
            if isinstance(error, DRIVER_ERRORS):
                raise self._session.refusal("the take-over", error) from error
            raise
        self._term = term
        self._extended_until = -1
        return term

    async def _extend(self, connection: Connection, batch: Batch) -> None:
        """Make room for `batch` and two partitions more, once for each partition reached."""
        span = self._leading().partition_ids
        if batch.last_id < self._extended_until:
            return
        await connection.execute(_SQL["extend"], batch.chain_id, batch.last_id)
        self._extended_until = (batch.last_id // span + 1) * span

    async def _read_batch(self, chain_id: int, row: Record) -> Batch:
        stored = await self._session.fetch("batch_pages", chain_id, row["first_id"], row["last_id"])
        events = [event for page in stored for event in map(Event, *page)]
        return Batch(
            chain_id=chain_id,
            epoch=row["epoch"],
            pid=row["prev_last_id"],
            first_id=row["first_id"],
            last_id=row["last_id"],
            seal_before=row["seal_before"],
            seal=row["seal"],
            committed_at_us=(row["committed_at"] - _EPOCH_START) // _MICROSECOND,
            events=events,
            pages=event_pages(events),
        )

    def _leading(self) -> Term:
        """Return the term. Raises RetryError when the connection was given up."""
        if not self._session.is_open or self._term is None:
            raise RetryError(GIVEN_UP)
        return self._term


async def _move_intake(connection: Connection, term: Term, intake: Sequence[IntakeMark]) -> None:
    """Store the marks behind the fence. Raises Fenced."""
    held = (term.chain_id, term.epoch, term.nonce)
    if await connection.fetchval(_SQL["lock_head"], *held) is None:
        raise Fenced(term.chain_id, term.epoch)
    await connection.executemany(_SQL["move_mark"], mark_values(term.chain_id, intake))
    await connection.executemany(_SQL["save_reject"], reject_values(term.chain_id, intake))
