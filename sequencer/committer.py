"""Commits batches one after the other, and finds out the outcome of each."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from chain_kernel.clock import Backoff
from chain_kernel.errors import (
    ConnectError,
    Fenced,
    HaltError,
    OrderchainError,
    PrimaryBehind,
    RetryError,
    RowLocked,
    UnknownOutcome,
)
from chain_kernel.monitoring import Buckets
from chain_kernel.text import SummedLog, reason_in_chain
from sequencer.assembly import Assembler, Assembly
from sequencer.stats import BATCH_SIZES, Timing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from opentelemetry.context import Context

    from chain_kernel.clock import Clock
    from chain_kernel.model import Event, Term
    from chain_kernel.ports import ChainStore
    from chain_kernel.seal import Batch
    from chain_kernel.tracing import Tracing
    from sequencer.config import SequencerConfig
    from sequencer.keys.keeper import KeyKeeper
    from sequencer.leadership import Leadership
    from sequencer.notifier import Notifier
    from sequencer.publisher import Publisher
    from sequencer.stats import SequencerCounters
    from sequencer.submission import Batcher, Entry

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Errors: TypeAlias = "type[OrderchainError] | tuple[type[OrderchainError], ...]"

_RETRY_SECONDS: Final = 0.1
_RETRY_SECONDS_MAX: Final = 2.0
"""Back-off while the database is away: doubles up to this, so its return is noticed soon."""


_FENCED_LOOK_SECONDS: Final = 2.0
"""The longest time that callers wait for the name of the process that fenced this one."""


class _NotSent:
    """The outcome of a commit that could not be sent."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def outcome(self) -> None:
        try:
            raise self._error
        finally:
            del self  # the error refers to this frame: it would be a cycle, which is kept for long

    def follow(self, batch: Batch, **_: object) -> None:
        """Nothing follows what was not sent."""


class Committer:
    """Commits for a leader, and raises its epoch when an outcome is not known.

    `_commit_until_known` handles the three outcomes of a commit in one place: done is answered,
    not done is retried, and unknown is first made known. That takes a new epoch: while the old
    transaction may still land, reading back sees nothing and proves nothing.
    """

    def __init__(
        self,
        config: SequencerConfig,
        store: ChainStore,
        leadership: Leadership,
        keys: KeyKeeper,
        clock: Clock,
        counters: SequencerCounters,
        random: Random | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._config = config
        self._tracing = tracing
        # One for all back-offs: a batch that succeeds must not pay for creating one.
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self._store = store
        self._leadership = leadership
        self._keys = keys
        self._clock = clock
        self._counters = counters
        self._assembler = Assembler(config, keys, clock)
        self._publisher: Publisher | Notifier | None = None
        # Invariant: never falls, and no primary that we lead may be below it.
        self._acknowledged_id = 0
        # Three batches are in the air at most. The oldest is committed, but its callers have no
        # answer yet; the next is the one that `_commit` awaits; the last is assembled, and sent if
        # the server can begin it as soon as that one has ended.
        self._committed: Assembly | None = None
        self._ahead: Assembly | None = None
        # What went wrong beside a commit whose outcome is still awaited.
        self._failure: Exception | None = None
        self._fenced: Fenced | None = None
        # The trace of the last commit, if commits are traced.
        self._trace: Context | None = None
        self.batch_rows_last = 0
        self.batch_sizes = Buckets(BATCH_SIZES)
        self.timing = Timing()
        self._outage = SummedLog(_log, logging.WARNING)

    @property
    def head_persisted(self) -> int:
        """The last id that is known to be committed."""
        return self._acknowledged_id

    def lead(self, term: Term) -> None:
        """Continue from the head that `term` found. Raises PrimaryBehind."""
        if term.last_id < self._acknowledged_id:
            raise PrimaryBehind(term.chain_id, term.last_id, self._acknowledged_id)
        self._acknowledged_id = term.last_id
        self._assembler.lead(term)
        self._keys.lead(term)
        if self._publisher is not None:
            self._publisher.lead(term)

    def publish_to(self, publisher: Publisher | Notifier) -> None:
        """Offer every committed batch to `publisher` from now on."""
        self._publisher = publisher

    async def run(self, batcher: Batcher) -> None:
        """Commit all that `batcher` returns, until it is closed and empty.

        One batch is assembled ahead while another commits. Raises when this process can lead no
        longer; the callers of all batches have their answers then.
        """
        try:
            while current := self._take_ahead() or await self._next(batcher):
                await self._commit(current, batcher)
        except BaseException as error:
            ahead = self._take_ahead()
            if ahead is not None:
                ahead.fail(_answer_of_ahead(error, ahead))
            raise

    def _take_ahead(self) -> Assembly | None:
        ahead, self._ahead = self._ahead, None
        return ahead

    async def _next(self, batcher: Batcher) -> Assembly | None:
        """Return the next assembly once there is one; None once closed and empty.

        Raises Fenced if the last commit was found beneath another leader.
        """
        if self._fenced is not None:
            raise await self._named(self._fenced)
        entries = await batcher.next_batch()
        if entries and self._publisher is not None and self._publisher.is_full:
            batcher.put_back(entries)  # others may join them there
            await self._publisher.room()
            entries = await batcher.next_batch()
        if not entries:
            return None
        with self._answering(entries):
            assembly = self._assembler.assemble(entries)
        return assembly or await self._resolve(entries, batcher)

    async def _resolve(self, entries: Sequence[Entry], batcher: Batcher) -> Assembly:
        """Assemble `entries` with what is stored of their keys and intakes. One look-up for all.

        They wait for it in the queue, where those whose time ends are refused.
        """
        batcher.put_back(entries)
        for source in self._assembler.unread_sources(entries):
            # A connection lost while idle costs one epoch.
            mark = await self.taking_over_again(partial(self._store.intake, source))
            self._assembler.learn(source, mark)
        keys = [order.key for entry in entries for order in entry.orders]
        known = await self.taking_over_again(lambda: self._rows_with(keys))
        entries = batcher.take(among=frozenset(entries))
        with self._answering(entries):
            entries = self._assembler.following(entries)
            assembly = self._assembler.resolve(entries, known)
        row_count = assembly.batch.row_count if assembly.batch else 0
        self._counters.repeats += sum(len(entry.orders) for entry in entries) - row_count
        return assembly

    async def _rows_with(self, keys: Sequence[str]) -> Mapping[str, Event]:
        try:
            return await self._keys.rows_with(keys)
        except (RetryError, ConnectError):
            # A session of its own, which may have been lost while idle: that costs no epoch. If the
            # server of the term is gone, a take-over has to find the next one.
            return await self._keys.rows_with(keys)

    async def _commit(self, current: Assembly, batcher: Batcher) -> None:
        """Commit `current`; while the server is busy with it, do all the other work."""
        current.began_ns = self._clock.monotonic_ns()
        try:
            await self._send(current)
            self._work_beside(current, batcher)
            if not (self._ahead or self._failure or batcher.has_full_batch()):
                # A caller that was answered just now makes its next call some turns later.
                batcher.when_full = partial(self._work_beside, current, batcher)
            try:
                await self._commit_until_known(current)
            except Fenced as error:
                raise await self._named(error) from error.__cause__
        except BaseException as error:
            self._finish()
            if self._tracing is not None and current.batch is not None:
                self._traced(self._tracing, current, current.batch, error)
            current.fail(_as_answer(error, current.batch))
            raise
        finally:
            batcher.when_full = None
            failure, self._failure = self._failure, None
        self._committed = current
        if current.batch is not None:
            self._count(current, current.batch)
        if self._ahead is None or failure is not None:
            await self._finish_after_answers()
        if failure is not None:
            raise failure

    def _work_beside(self, current: Assembly, batcher: Batcher) -> None:
        """Overlap with the commit of `current`: answer callers, publish, assemble the next batch.

        Keep the error instead of raising it: `current` must finish first, and the call that fills
        a batch did nothing wrong.
        """
        try:
            self._finish()
            # A take-over follows what was not sent: others wait for it in the queue, where those
            # whose time ends are refused. After what was sent under an epoch of before, nothing may
            # be given ids yet.
            is_sent = not isinstance(current.pending, _NotSent | None)
            if is_sent and self._assembler.is_current(current):
                self._assemble_ahead(current, batcher)
        except Exception as error:  # noqa: BLE001 - raised after the outcome
            self._failure = error

    def _assemble_ahead(self, current: Assembly, batcher: Batcher) -> None:
        """Assemble the batch after `current` if it would not grow by waiting, and send it.

        It is not assembled if it depends on the outcome of `current`: a key that both claim.
        """
        if not batcher.has_full_batch():
            return
        if self._publisher is not None and self._publisher.is_full:
            return
        entries = batcher.take()
        if not entries:
            return
        with self._answering(entries):
            self._ahead = self._assembler.assemble(entries, beside=current)
        if self._ahead is None:
            batcher.put_back(entries)
        else:
            self._follow(current, self._ahead)

    def _follow(self, current: Assembly, ahead: Assembly) -> None:
        """Have the server begin `ahead` as soon as `current` has ended, if it can."""
        if current.pending is not None and ahead.batch is not None:
            ahead.pending = current.pending.follow(
                ahead.batch, published_id=self._published_id(), intake=ahead.intake
            )

    @contextmanager
    def _answering(self, entries: Sequence[Entry]) -> Iterator[None]:
        """Answer the callers of `entries`, which are in no list, if no batch is made of them.

        None of them was sent, so none is committed.
        """
        try:
            yield
        except BaseException as error:
            failure = _as_answer(error, None)
            for entry in entries:
                entry.fail(failure)
            raise

    async def _finish_after_answers(self) -> None:
        """Finish the last commit once its callers have their answers: they wait for nothing else.

        The next batch is assembled later, by the same task, so its keys are known by then.
        """
        try:
            if self._committed is not None:
                self._committed.answer()
            await asyncio.sleep(0)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Answer the callers of the last commit, and offer its batch to the publisher."""
        assembly, self._committed = self._committed, None
        if assembly is None:
            return
        try:
            if assembly.batch is not None:
                self._keys.remember(assembly.batch, assembly.claims)
        finally:
            # Before it is published: that must not delay the acknowledgement of the commit.
            assembly.answer()
        if assembly.batch is not None and self._publisher is not None:
            self._publisher.offer(assembly.batch, self._trace)

    def _count(self, assembly: Assembly, batch: Batch) -> None:
        self._acknowledged_id = batch.last_id
        duration_ns = self._clock.monotonic_ns() - assembly.began_ns
        self._counters.orders += batch.row_count
        self._counters.batches += 1
        self.batch_rows_last = batch.row_count
        self.batch_sizes.add(batch.row_count)
        self.timing.add(duration_ns / 1e9)
        if self._tracing is not None:
            self._trace = self._traced(self._tracing, assembly, batch)

    def _traced(
        self,
        tracing: Tracing,
        assembly: Assembly,
        batch: Batch,
        error: BaseException | None = None,
    ) -> Context:
        ended_ns = self._clock.wall_ns()
        duration_ns = self._clock.monotonic_ns() - assembly.began_ns
        return tracing.committed(batch, ended_ns - duration_ns, ended_ns, error)

    async def _named(self, error: Fenced) -> Fenced:
        """Return `error` with who has taken the chain over, if anybody can say."""
        with suppress(RetryError, ConnectError, TimeoutError):
            async with asyncio.timeout(_FENCED_LOOK_SECONDS):
                state = await self._store.look()
                return error.named_by(state.epoch, state.owner)
        return error

    async def _send(self, assembly: Assembly) -> None:
        """Send `assembly` under the epoch of now. What the store refuses is said by its outcome."""
        if assembly.pending is not None:
            return  # whatever has happened since, its outcome comes first
        if not self._assembler.is_current(assembly):
            # Something went wrong and raised the epoch: ids and seal are void.
            self._assembler.give_ids(assembly)
        if assembly.batch is None:
            return
        try:
            assembly.pending = await self._store.begin(
                assembly.batch, published_id=self._published_id(), intake=assembly.intake
            )
        except Exception as error:  # noqa: BLE001 - its outcome
            assembly.pending = _NotSent(error)

    async def _commit_until_known(self, assembly: Assembly) -> None:
        """Commit `assembly`, under whichever epoch of ours it succeeds."""
        deadline_ns = self._deadline_ns()

        async def commit() -> None:
            await self._send(assembly)
            batch = assembly.batch
            try:
                await self._outcome(assembly)
            except UnknownOutcome as error:
                self._counters.unknown_outcomes += 1
                _log.warning("%s; taking over again to find out", error)
                if batch is None or not await self._is_found(assembly, batch, error, deadline_ns):
                    what = f"commit: the connection broke, and nothing came of {error}"
                    raise RetryError(what) from None
            except RowLocked:
                # No take-over: it would wait for the same lock, and beats would wait for it.
                raise
            except RetryError as error:
                await self._take_over_until(deadline_ns, error)
                raise

        # A commit connects to nothing: who is refused now is refused the next time, too.
        await self._until_done(commit, deadline_ns, outages=RetryError, is_first_at_once=True)

    async def _outcome(self, assembly: Assembly) -> None:
        """Wait for the outcome of `assembly`. It is `pending` until then, and others may follow."""
        try:
            if assembly.pending is not None:
                await assembly.pending.outcome()
            elif assembly.intake or not all(entry.orders for entry in assembly.entries):
                # An entry without orders asks whether we lead, over a connection that works.
                await self._store.move_intake(assembly.intake)
        finally:
            assembly.pending = None

    async def _is_found(
        self, assembly: Assembly, batch: Batch, unknown: UnknownOutcome, deadline_ns: int
    ) -> bool:
        """Return whether `batch` was committed; if that stays open, its callers get `unknown`.

        What prevents the answer (a database that is no longer safe, a stop) says nothing about
        the batch.
        """
        try:
            return await self._find_out(batch, unknown, deadline_ns)
        except (Fenced, HaltError):
            raise
        except BaseException:
            assembly.fail(unknown)
            raise

    async def _find_out(self, batch: Batch, unknown: UnknownOutcome, deadline_ns: int) -> bool:
        """Raise the epoch, then return whether `batch` was committed.

        Raises `unknown` at the deadline.
        """

        async def look() -> bool:
            fenced: Fenced | None = None
            try:
                self.lead(await self._leadership.renew_term())
            except Fenced as error:
                # Another leader has raised it: that ends the old transaction too.
                fenced = error
            is_committed = await self._store.has_committed(batch)
            if fenced is not None:
                if not is_committed:
                    raise fenced
                # First the callers get their answers, also those of a batch that was sent after it.
                self._fenced = fenced
            return is_committed

        return await self._until_done(look, deadline_ns, unknown, is_first_at_once=True)

    async def taking_over_again(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return what `work` returns, which reads over the leader's connection.

        Where it fails for a while, takes over again, which makes a new connection, and repeats it.
        Raises what it raised last, after `recover_seconds`; Fenced when another process leads.
        """
        deadline_ns = self._deadline_ns()
        failure: RetryError | ConnectError | None = None

        async def again() -> _Result:
            nonlocal failure
            if failure is not None:
                await self._take_over_until(deadline_ns, failure)
            try:
                return await work()
            except (RetryError, ConnectError) as error:
                failure = error
                raise

        try:
            return await self._until_done(again, deadline_ns, is_first_at_once=True)
        finally:
            failure = None  # it refers to this frame

    async def _take_over_until(self, deadline_ns: int, cause: Exception) -> None:
        """Take over; retry while the database is away. Raises `cause` at the deadline."""

        async def take_over() -> None:
            self.lead(await self._leadership.renew_term())

        await self._until_done(take_over, deadline_ns, cause)

    async def _until_done(
        self,
        work: Callable[[], Awaitable[_Result]],
        deadline_ns: int,
        cause: Exception | None = None,
        *,
        outages: _Errors = (RetryError, ConnectError),
        is_first_at_once: bool = False,
    ) -> _Result:
        """Return what `work` returns; retry while the database is away: what `outages` say.

        Raises `cause`, or else what `work` raised last, when there is no time left for a try.
        """
        chain_id = self._config.chain_id
        backoff: Backoff | None = None
        while True:
            try:
                done = await work()
            except outages as error:
                why = reason_in_chain(chain_id, error)
                self._outage.repeat(f"chain {chain_id}: {why}; trying again")
                backoff = backoff or Backoff(
                    _RETRY_SECONDS, _RETRY_SECONDS_MAX,
                    is_first_at_once=is_first_at_once, random=self._random,
                )  # fmt: skip
                seconds = backoff.next_seconds()
                is_over = self._clock.monotonic_ns() + seconds * 1e9 >= deadline_ns
                if is_over and cause is None:
                    raise
            else:
                # With a cause, it is a part of what is repeated.
                if backoff is not None and cause is None:
                    self._outage.log()
                return done
            if is_over and cause is not None:
                raise cause
            await asyncio.sleep(seconds)

    def _deadline_ns(self) -> int:
        return self._clock.monotonic_ns() + int(self._config.tuning.recover_seconds * 1e9)

    def _published_id(self) -> int:
        return self._publisher.published_id if self._publisher is not None else 0


def _as_answer(error: BaseException, batch: Batch | None) -> Exception:
    """Return the answer for callers. After a stop in mid-commit, the outcome is unknown."""
    if isinstance(error, Exception):
        return error
    if batch is None:
        return RetryError("the sequencer was stopped")
    return UnknownOutcome(batch.chain_id, batch.epoch, batch.first_id, batch.last_id)


def _answer_of_ahead(error: BaseException, ahead: Assembly) -> Exception:
    """Return the answer for the callers of `ahead`, after the commit before it raised `error`.

    If it was sent, it may have been committed, unless the fence prevents it.
    """
    batch = ahead.batch
    if ahead.pending is None or batch is None or isinstance(error, Fenced):
        return _as_answer(error, None)
    return UnknownOutcome(batch.chain_id, batch.epoch, batch.first_id, batch.last_id)
