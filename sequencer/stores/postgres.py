"""The store in PostgreSQL: commits of batches, and what is read back.

A commit takes one round trip, whatever its size. A leader that was replaced must not even copy its
rows: the fence comes first, in either form.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import chain as flatten
from struct import Struct as Packing
from typing import TYPE_CHECKING, Any, Final, NoReturn

from chain_kernel.clients.postgres_errors import DRIVER_ERRORS, sqlstate_of
from chain_kernel.clock import SystemClock, ns_of, time_of
from chain_kernel.errors import (
    ChainMissing,
    Fenced,
    IntakeMoved,
    OrderchainError,
    RetryError,
    RowLocked,
    UnknownOutcome,
)
from chain_kernel.frame import NONCE_BYTES
from chain_kernel.model import IntakeMark, LeaseState, Term
from chain_kernel.seal import (
    COLUMNS,
    COPY_HEADER,
    COPY_TRAILER,
    SEAL_BYTES,
    Batch,
    Columns,
    column_pages,
)
from chain_kernel.sql import load_sql
from sequencer.stores.session import GIVEN_UP, LOCKED, CommitLine, call
from sequencer.stores.take_over import Secrets, raise_epoch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from chain_kernel.clients.pipeline import Pipeline
    from chain_kernel.clients.postgres import Connection
    from chain_kernel.clock import Clock
    from sequencer.config import SequencerConfig
    from sequencer.stores.session import LeaderSession
    from sequencer.stores.together import Together


_log = logging.getLogger(__name__)

_SQL: Final = load_sql("sequencer", "queries.sql")

_STATEMENT_ROWS_MAX: Final = 32
"""Rows that are sent as values of one statement. With more, COPY's cheaper rows outweigh its
start."""

_COPY: Final = f"COPY chain_page ({', '.join(COLUMNS)}) FROM STDIN (FORMAT binary)"

_FENCE_FAILED: Final = "22012"
"""division_by_zero: how `commit_batch` ends a transaction that did not pass the fence."""

_TAKEN: Final = "23505"
"""unique_violation: a parent that is taken."""

_MARK_MOVED: Final = "2201E"
"""invalid_argument_for_logarithm: how `save_mark` ends a transaction whose intake is elsewhere."""

_FENCE: Final = Packing(f"!iiiqi{NONCE_BYTES}siqiqiqiii{SEAL_BYTES}siqiq")
_FENCE_VALUES: Final = 10
_PAGE_COLUMNS: Final = 5
_SERVER_EPOCH_US: Final = 946_684_800_000_000
"""The server's own zero of times, 2000 UTC, in microseconds since 1970."""


class Commit:
    """Implements `chain_kernel.ports.PendingCommit`: a batch on its way, with its intake marks.

    The session's lock is held from `send` to the end of `outcome`; a commit that follows takes it
    when its own outcome is asked for.
    """

    def __init__(
        self,
        store: PostgresChainStore,
        term: Term,
        batch: Batch,
        *,
        published_id: int,
        intake: Sequence[IntakeMark] = (),
    ) -> None:
        self._store = store
        self._session = store.session
        self._term = term
        self._batch = batch
        self._intake = intake
        self._published_id = published_id
        self._holds_lock = False
        self._is_sent = False
        self._answer: asyncio.Future[None] | None = None
        self._has_follower = False
        # Another user of the session gave it up before this one's turn.
        self._is_given_up = False
        # By the loop's clock, from when it is this one's turn: for all that is left of the commit.
        self._deadline: float | None = None

    async def send(self) -> None:
        """Send it as soon as nothing else is under way. Raises as `outcome`."""
        store, batch, session = self._store, self._batch, self._session
        await session.lock.acquire()
        self._holds_lock = True
        try:
            if not (session.is_idle and store.has_room(batch)):
                async with asyncio.timeout_at(self._turn_ends_at()):
                    await store.extend(await session.idle(), batch)
            self.send_now(session.pipeline)
            if batch.row_count > 1:  # a row alone has nothing beside it worth another turn
                await asyncio.sleep(0)  # the loop sends what was written at the end of its turn
        except BaseException as error:  # noqa: BLE001 - raised as what it is
            self._raise(error)

    def send_now(self, pipeline: Pipeline) -> None:
        """Send it after whatever is under way."""
        batch = self._batch
        self._is_sent = True
        if self._intake or len(batch.pages) > 1 or batch.row_count > _STATEMENT_ROWS_MAX:
            self._answer = pipeline.send(*self._copying())
            return
        page = batch.pages[0]
        # The image of a column of one row is the row's value after its length.
        is_row = page.row_count == 1
        name = "orderchain_commit_row" if is_row else "orderchain_commit_page"
        columns = page.columns if is_row else page.copied(batch.chain_id)[1:]
        # In binary form, each value after its length.
        term = self._term
        fence = _FENCE.pack(
            4, batch.chain_id, 8, term.epoch, NONCE_BYTES, term.nonce, 8, batch.pid,
            8, batch.first_id, 8, batch.last_id, 4, batch.row_count, SEAL_BYTES, batch.seal,
            8, batch.committed_at_us - _SERVER_EPOCH_US, 8, self._published_id,
        )  # fmt: skip
        self._answer = pipeline.execute(name, _FENCE_VALUES + _PAGE_COLUMNS, [fence, *columns])

    def _copying(self) -> tuple[str, list[bytes]]:
        """Return the statements, the last of which is a COPY, and its data."""
        term, batch, chain_id = self._term, self._batch, self._batch.chain_id
        fence = (
            chain_id, term.epoch, term.nonce, batch.pid, batch.first_id, batch.last_id,
            batch.row_count, batch.seal, time_of(batch.committed_at_us * 1_000),
            self._published_id,
        )  # fmt: skip
        statements = [
            call("commit_batch", fence),
            *(call("save_mark", values) for values in mark_values(chain_id, self._intake)),
            *(call("save_reject", values) for values in reject_values(chain_id, self._intake)),
            _COPY,
        ]
        pages = (page.copied(chain_id) for page in batch.pages)
        return ";".join(statements), [COPY_HEADER, *flatten.from_iterable(pages), COPY_TRAILER]

    def follow(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> Commit | None:
        """Send another one after this."""
        session = self._session
        if self._has_follower or not self._is_sent or not session.is_open:
            return None
        if self._store.line.newest.is_replaced(session.server):
            return None  # what is under way settles here; whatever follows begins with a take-over
        # Somebody else may use the driver, whose answer would be taken for ours. While the lock is
        # free, that cannot be: each holder first waits for all that is under way.
        is_others_turn = session.lock.locked() and not self._holds_lock
        if is_others_turn or session.is_interrupted:
            return None
        if not self._store.has_room(batch):
            return None
        work = self._store.commit_of(batch, published_id=published_id, intake=intake)
        work.send_now(session.pipeline)
        self._has_follower = True
        return work

    async def outcome(self) -> None:
        """Wait for the end."""
        session = self._session
        if not self._holds_lock:
            await session.lock.acquire()
            self._holds_lock = True
        self._is_given_up = not session.is_open
        try:
            async with asyncio.timeout_at(self._turn_ends_at()):
                if self._answer is None:
                    raise RuntimeError("the outcome of a commit that was not sent")
                await self._answer
            session.check_replicated()
        except BaseException as error:  # noqa: BLE001 - raised as what it is
            self._raise(error)
        finally:
            self._answer = None  # its error refers to this frame
            self._let_go()

    def _turn_ends_at(self) -> float:
        """Return the deadline; it is now this one's turn."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._store.commit_seconds
        return self._deadline

    def _raise(self, error: BaseException) -> NoReturn:
        """Give up; raise what went wrong as one of the outcomes."""
        if self._has_follower:  # its fence fails without this one
            self._session.abandon()
        self._session.abandon_after(error)
        self._let_go()
        outcome = error
        if isinstance(error, Exception):
            outcome = self._failure(error) or self._session.refusal("the commit", error)
        try:
            raise outcome from (error if outcome is not error else error.__cause__)
        finally:
            del outcome, error  # they refer to this frame, which holds the batch: it would be kept

    def _let_go(self) -> None:
        if self._holds_lock:
            self._holds_lock = False
            self._session.lock.release()

    def _failure(self, error: Exception) -> Exception | None:
        """Return what to raise for `error`: which of the three outcomes it is.

        None if it is not an outcome of the commit itself: it was not done, for a reason of the
        database.
        """
        batch = self._batch
        if isinstance(error, OrderchainError):
            return error
        state = sqlstate_of(error)
        # Once the transaction was sent, only the server's own refusal shows that it did not happen;
        # a session that was ended (57) or a connection that broke (08) shows nothing. Nor does the
        # fence where the commit before this one has failed: its row is what is missing.
        if self._is_sent and (self._is_given_up or state[:2] in {"", "08", "57"}):
            return UnknownOutcome(batch.chain_id, batch.epoch, batch.first_id, batch.last_id)
        # A parent that is taken asks the same question as the fence: who leads?
        if state in {_FENCE_FAILED, _TAKEN}:
            return Fenced(batch.chain_id, batch.epoch)
        if state == LOCKED and not self._has_follower:
            return RowLocked(batch.chain_id)
        return intake_refusal(error, self._intake)


def intake_refusal(error: Exception, intake: Iterable[IntakeMark]) -> IntakeMoved | None:
    """Return IntakeMoved if `error` shows that a mark of `intake` does not follow the stored one.

    A leader stores only marks that it knows to follow: somebody else wrote to the table.
    """
    if sqlstate_of(error) != _MARK_MOVED:
        return None
    firsts = {mark.source: mark.previous for mark in reversed(list(intake))}
    return IntakeMoved(", ".join(firsts), next(iter(firsts.values()), None))


def mark_values(chain_id: int, intake: Iterable[IntakeMark]) -> list[tuple[object, ...]]:
    """Return the values of `save_mark`, one row per source: from before its first mark, which the
    others follow, to its last.
    """
    marks = list(intake)
    firsts = {mark.source: mark.previous for mark in reversed(marks)}
    lasts = {mark.source: mark for mark in marks}.values()
    return [
        (chain_id, mark.source, mark.position, mark.digest, firsts[mark.source]) for mark in lasts
    ]


def reject_values(chain_id: int, intake: Iterable[IntakeMark]) -> list[tuple[object, ...]]:
    """Return the values of `save_reject`: the refused orders."""
    return [
        (chain_id, mark.source, reject.position, reject.key, reject.reason)
        for mark in intake
        for reject in mark.rejects
    ]


class PostgresChainStore:
    """Implements `chain_kernel.ports.ChainStore` over one direct connection to the primary.

    After an error in a commit the connection is gone, and `take_over_again` makes a new one: only
    the epoch that it raises makes the outcome of the old transaction certain.

    A term is bound to the session that it was taken over on. Another chain that shares the line may
    have opened a new one since, and that may lead to a standby that was promoted meanwhile: there
    only a take-over shows whether the head lacks what was acknowledged (PrimaryBehind).
    """

    def __init__(
        self,
        config: SequencerConfig,
        clock: Clock | None = None,
        shared: CommitLine | None = None,
        looks: Together[None, dict[str, Any]] | None = None,
        *,
        is_published: bool = True,
    ) -> None:
        """`shared`: the line of several chains, which somebody else closes; `looks`: those of all
        chains of the process, by default of the line; `is_published`: whether there is a broker.
        """
        self._is_published = is_published
        self._config = config
        self._tuning = config.tuning
        self._is_shared = shared is not None
        self.line = shared or CommitLine(config, clock or SystemClock())
        self._looks = looks or self.line.looks
        self._session: LeaderSession | None = None
        self._term: Term | None = None
        # Held from the end of one term to the begin of the next of ours.
        self._between_terms = asyncio.Lock()
        # The nonces of the take-overs tried since the last that succeeded. Each of them may still
        # land, however many came after it: then the term is ours anyway.
        self._drawn: set[bytes] = set()
        self._extended_until = -1

    async def look(self) -> LeaseState:
        """Return who leads."""
        row = await self._looks.ask(self._config.chain_id, None)
        if row is None:
            raise ChainMissing(self._config.chain_id)
        return LeaseState(**row, is_ours=row["nonce"] in self._drawn)

    async def take_over(self, owner: str, seen: LeaseState) -> Term:
        """Raise the epoch over what was seen."""
        await self.line.newest.ask()
        return await self._raise_epoch(owner, seen.epoch, seen.nonce, seen.counter)

    async def take_over_again(self, owner: str, held: Term) -> Term:
        """Raise our own epoch."""
        async with self._between_terms:
            return await self._take_over_again(owner, held)

    async def _take_over_again(self, owner: str, held: Term) -> Term:
        self._term = self._session = None  # nothing may be done under it from here on
        if not self._is_shared:  # else it may be in use, or another chain has just opened it
            await self.line.close()
        state = await self.look()
        seen = state if state.is_ours else held
        while True:
            try:
                return await self._raise_epoch(owner, seen.epoch, seen.nonce, None)
            except Fenced as error:
                # An earlier try of ours may have landed since we looked.
                state = await self.look()
                if not state.is_ours or state.nonce == seen.nonce:
                    raise error.named_by(state.epoch, state.owner) from None
                seen = state

    @property
    def session(self) -> LeaderSession:
        """The session of the term, for commits on their way. Raises RetryError without one."""
        if self._session is None:
            raise RetryError(GIVEN_UP)
        return self._session

    @property
    def commit_seconds(self) -> float:
        """The deadline of one commit."""
        return self._tuning.commit_seconds

    async def begin(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> Commit:
        """Send the commit of `batch`."""
        work = self.commit_of(batch, published_id=published_id, intake=intake)
        await work.send()
        return work

    def commit_of(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> Commit:
        """Return a commit that is not sent yet. Raises RetryError."""
        return Commit(self, self._leading(), batch, published_id=published_id, intake=intake)

    def has_room(self, batch: Batch) -> bool:
        """Say whether the partition of `batch` was made; else `extend` makes it."""
        return batch.last_id < self._extended_until

    async def move_intake(self, intake: Sequence[IntakeMark]) -> None:
        """Store only intake marks."""
        session = self.session
        async with session.lock:
            term = self._leading()
            try:
                async with asyncio.timeout(self._tuning.commit_seconds):
                    connection = await session.idle()
                    async with connection.transaction():
                        await _move_intake(connection, term, intake)
                    session.check_replicated()
            except BaseException as error:
                # Even if the caller is gone: a transaction may be open.
                session.abandon_after(error)
                if isinstance(error, DRIVER_ERRORS):
                    failure = self._refusal(session, "the intake's mark", error)
                    raise (intake_refusal(error, intake) or failure) from error
                raise

    async def has_committed(self, batch: Batch) -> bool:
        """Return whether `batch` is in the chain."""
        # Where our take-over succeeded, only its own session sees what it has ended. Where another
        # leader was faster, any session may see the outcome of our batch.
        session = await self.line.session() if self._session is None else self._session
        row = await session.fetch_row("batch_after", batch.chain_id, batch.pid)
        if row is None or (row["epoch"], row["seal"]) != (batch.epoch, batch.seal):
            return False
        # It is there, but the standbys that its commit waited for may not have it: that wait may
        # have been cancelled.
        await session.fetch_row("await_standbys")
        return True

    async def skip_published(self, after_id: int, until_id: int) -> None:
        """Record a range that is not published."""
        async with self._between_terms:  # a take-over again ends first: no fence of its own
            session = self.session
        async with session.lock:
            term = self._leading()
            values = (term.chain_id, term.epoch, term.nonce, after_id, until_id)
            try:
                moved = await session.fetch_locked("skip_published", *values)
            except RetryError as error:
                if isinstance(cause := error.__cause__, DRIVER_ERRORS):
                    raise self._refusal(session, "skip_published", cause) from cause
                raise
            if not moved:
                raise Fenced(term.chain_id, term.epoch)

    async def rows_after(self, after_id: int, at_most: int) -> int:
        """Count the rows after `after_id`."""
        term = self._leading()
        row = await self.session.fetch_row("rows_after", term.chain_id, after_id, at_most)
        return int(row[0]) if row else 0

    async def batches(self, after_id: int) -> AsyncIterator[Batch]:
        """Yield the batches after `after_id`."""
        term = self._leading()
        while row := await self.session.fetch_row("next_batch", term.chain_id, after_id):
            stored = await self.session.fetch(
                "batch_pages", term.chain_id, row["first_id"], row["last_id"]
            )
            columns = Columns(*map(list, map(flatten.from_iterable, zip(*stored, strict=True))))
            yield Batch(
                chain_id=term.chain_id,
                epoch=row["epoch"],
                pid=row["prev_last_id"],
                first_id=row["first_id"],
                last_id=row["last_id"],
                seal_before=row["seal_before"],
                seal=row["seal"],
                committed_at_us=ns_of(row["committed_at"]) // 1_000,
                columns=columns,
                pages=column_pages(columns),
            )
            after_id = row["last_id"]

    async def intake(self, source: str) -> IntakeMark | None:
        """Return how far `source` was read."""
        row = await self.session.fetch_row("intake", self._config.chain_id, source)
        if row is None:
            return None
        return IntakeMark(source=source, position=row["position"], digest=row["digest"])

    async def close(self) -> None:
        """Close the connection within a second, or drop it; leave one that others share.

        A commit whose outcome is not asked for ends by itself there, before those of others.
        """
        self._term = self._session = None
        if not self._is_shared:
            await self.line.close()

    async def _raise_epoch(self, owner: str, epoch: int, nonce: bytes, counter: int | None) -> Term:
        drawn = Secrets.draw()
        self._drawn.add(drawn.nonce)
        seen = (self._config.chain_id, epoch, nonce)
        session = await self.line.session()
        async with session.lock:
            try:
                tuning = self._tuning
                async with asyncio.timeout(tuning.commit_seconds):
                    term = await raise_epoch(
                        session, owner, drawn, seen, counter,
                        tuning.lease_seconds, tuning.commit_seconds,
                        is_published=self._is_published,
                    )  # fmt: skip
                    # What a take-over finds counts as replicated: it was, if this commit is.
                    session.check_replicated()
            except Fenced:
                # Rolled back: the connection is as good as before, for others too.
                self._drawn.discard(drawn.nonce)  # it cannot land any more
                raise
            except BaseException as error:
                session.abandon_after(error)
                if isinstance(error, DRIVER_ERRORS):
                    if sqlstate_of(error) == LOCKED:
                        self._drawn.discard(drawn.nonce)  # it was not done
                    raise self._refusal(session, "the take-over", error) from error
                raise
        self._drawn.clear()
        self._term, self._session = term, session
        self._extended_until = -1
        return term

    async def extend(self, connection: Connection, batch: Batch) -> None:
        """Make room for `batch` and two partitions more, once for each partition reached."""
        span = self._leading().partition_ids
        if self.has_room(batch):
            return
        await connection.execute(_SQL["extend"], batch.chain_id, batch.last_id)
        self._extended_until = (batch.last_id // span + 1) * span

    def _refusal(self, session: LeaderSession, what: str, error: Exception) -> Exception:
        """Return what to raise for `error`, which came before anything of `what` was done, or left
        it open.
        """
        if sqlstate_of(error) == LOCKED:
            return RowLocked(self._config.chain_id)
        return session.refusal(what, error)

    def _leading(self) -> Term:
        """Return the term. Raises RetryError when the connection was given up, or another chain of
        this process has seen a newer server.
        """
        if self._term is None or not self.session.is_open:
            raise RetryError(GIVEN_UP)
        self.line.newest.require_newest(self.session.server)
        return self._term


async def _move_intake(connection: Connection, term: Term, intake: Sequence[IntakeMark]) -> None:
    """Store the marks if the fence holds. Raises Fenced."""
    held = (term.chain_id, term.epoch, term.nonce)
    if await connection.fetchval(_SQL["lock_head"], *held) is None:
        raise Fenced(term.chain_id, term.epoch)
    await connection.executemany(_SQL["move_mark"], mark_values(term.chain_id, intake))
    await connection.executemany(_SQL["save_reject"], reject_values(term.chain_id, intake))
