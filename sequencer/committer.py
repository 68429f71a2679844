"""Commits batches one after the other, and finds out the outcome of each."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

from chain_kernel.clock import Backoff
from chain_kernel.errors import (
    ConnectError,
    Fenced,
    HaltError,
    IntakeMoved,
    PrimaryBehind,
    RetryError,
    UnknownOutcome,
)
from chain_kernel.monitoring import Buckets
from chain_kernel.text import SummedLog
from sequencer.core import ClockWatch, SequencerCore
from sequencer.key_resolution import Assembly, KeyResolution, columns_of_entries
from sequencer.stats import BATCH_SIZES, Timing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from opentelemetry.context import Context

    from chain_kernel.clock import Clock
    from chain_kernel.model import Event, IntakeMark, Term
    from chain_kernel.ports import ChainStore
    from chain_kernel.seal import Batch
    from chain_kernel.tracing import Tracing
    from sequencer.config import SequencerConfig
    from sequencer.keys.keeper import KeyKeeper
    from sequencer.keys.memory import Claims, KeyMemory
    from sequencer.leadership import Leadership
    from sequencer.publisher import Publisher
    from sequencer.submission import Entry

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_RETRY_SECONDS: Final = 0.1
_RETRY_SECONDS_MAX: Final = 2.0
"""Back-off while the database is away: doubles up to this, so its return is noticed soon."""


_FENCED_LOOK_SECONDS: Final = 2.0
"""How long callers wait at most for the name of the process that fenced this one."""


class _NotSent:
    """The outcome of a commit that could not be sent."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def outcome(self) -> None:
        raise self._error

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
        self._clock_watch = ClockWatch()
        self._core: SequencerCore | None = None
        self._publisher: Publisher | None = None
        # Invariant: never falls, and no primary that we lead may be below it.
        self._acknowledged_id = 0
        # By source, the position after all that was assembled; None if it was never read. What is
        # assembled is committed in its order, or this process commits nothing more.
        self._positions: dict[str, int | None] = {}
        # Committed, but its callers have no answer yet: at most one.
        self._unfinished: Assembly | None = None
        # The trace of its commit, if commits are traced.
        self._trace: Context | None = None
        self.rows = 0
        self.batches = 0
        self.batch_rows_last = 0
        self.batch_sizes = Buckets(BATCH_SIZES)
        self.timing = Timing()
        self.repeats = 0
        self.unknown_outcomes = 0
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
        self._wall_ns()  # the first call starts the watch on the clock
        self._core = SequencerCore(
            term,
            takeover_skip_ids=self._config.takeover_skip_ids,
            id_strategy=self._config.id_strategy,
        )
        if self._publisher is not None:
            self._publisher.lead(term)

    def publish_to(self, publisher: Publisher) -> None:
        """Offer every committed batch to `publisher` from now on."""
        self._publisher = publisher

    def assemble(self, entries: Sequence[Entry], beside: Assembly | None = None) -> Assembly | None:
        """Make the next batch of `entries` if all their keys are certainly new, else return None.

        `beside` is a batch whose outcome is still open: a key that it claims is not certainly new.
        """
        columns = columns_of_entries(entries)
        claims: Claims | None = None
        memory = self._keys.memory
        if memory is not None:
            claims = memory.claim(columns, beside=beside.claims if beside is not None else None)
            if claims is None:
                return None
        assembly = Assembly(entries, columns, claims)
        positions = self._positions_after(assembly.intake)
        if positions is None:
            return None
        assembly.give_ids(self._leading(), self._wall_ns())
        self._positions.update(positions)
        return assembly

    async def resolve(self, entries: Sequence[Entry]) -> Assembly:
        """Make the next batch of the orders in `entries` that are new; refuse bad entries.

        For use when no other batch is open, and `assemble` returned None. One look-up for all.
        """
        entries = await self._following(entries)
        memory = self._keys.memory
        if memory is None:
            assembly = Assembly(entries, columns_of_entries(entries) if entries else None, None)
        else:
            keys = columns_of_entries(entries).keys
            known = await self._until_done(lambda: self._keys.rows_with(keys))
            resolution = await self._resolution(entries, memory, known)
            assembly = Assembly.of_resolution(resolution, memory)
            self.repeats += len(keys) - len(resolution.new)
        assembly.give_ids(self._leading(), self._wall_ns())
        self._positions.update((mark.source, mark.position) for mark in assembly.intake)
        return assembly

    async def _resolution(
        self, entries: Sequence[Entry], memory: KeyMemory, known: Mapping[str, Event]
    ) -> KeyResolution:
        """Place `entries`; fail the refused ones, and those whose marks follow a refused one."""
        while True:
            resolution = KeyResolution(memory, known)
            resolution.add(entries)
            for entry, refusal in resolution.refused:
                entry.fail(refusal)
            if all(entry.intake is None for entry, _ in resolution.refused):
                return resolution
            entries = await self._following([entry for entry, _ in resolution.placed])

    async def _following(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries whose marks follow the stored ones; refuse the others.

        If one call of an intake was not taken, the next call must not move the mark past it.
        """
        followed: list[Entry] = []
        newest: dict[str, int] = {}
        for entry in entries:
            mark = entry.intake
            if mark is not None:
                if mark.source not in self._positions:
                    await self._learn_position(mark.source)
                if not self._is_next(mark, newest):
                    entry.fail(IntakeMoved(mark.source, mark.previous))
                    continue
                newest[mark.source] = mark.position
            followed.append(entry)
        return followed

    async def _learn_position(self, source: str) -> None:
        """Read how far `source` was taken. A connection lost while idle costs one epoch."""
        mark = await self.taking_over_again(lambda: self._store.intake(source))
        self._positions[source] = None if mark is None else mark.position

    async def taking_over_again(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return what `work` returns, which reads over the leader's connection.

        Where it fails for a while, takes over again, which makes a new connection, and repeats it.
        Raises what it raised last, after `recover_seconds`; Fenced when another process leads.
        """
        deadline_ns = self._deadline_ns()
        backoff = self._backoff(is_first_at_once=True)
        while True:
            try:
                found = await work()
            except (RetryError, ConnectError) as error:
                self._outage.repeat(f"chain {self._config.chain_id}: {error}; trying again")
                failure = error
            else:
                self._outage.log()
                return found
            await self._pause(backoff, deadline_ns, failure)
            await self._take_over_until(deadline_ns, failure)

    def _positions_after(self, marks: Sequence[IntakeMark]) -> dict[str, int] | None:
        """Return the positions of the intakes after `marks`; None unless each mark certainly
        follows what was taken before.
        """
        newest: dict[str, int] = {}
        for mark in marks:
            if not self._is_next(mark, newest):
                return None
            newest[mark.source] = mark.position
        return newest

    def _is_next(self, mark: IntakeMark, newest: Mapping[str, int]) -> bool:
        """Return whether `mark` certainly follows all that was assembled, and then `newest`."""
        known = newest if mark.source in newest else self._positions
        return mark.source in known and known[mark.source] == mark.previous

    async def begin(self, assembly: Assembly) -> None:
        """Send `assembly`, unless it was sent after the one before; what follows is left to `end`.

        Between the two the server is busy: that is the time for `finish` of what was committed
        before, and for `follow`. Raises when this process can lead no longer; the callers have
        their answers then too.
        """
        assembly.began_ns = self._clock.monotonic_ns()
        try:
            await self._send(assembly)
        except BaseException as error:
            self._fail(assembly, error)
            raise

    async def end(self, assembly: Assembly) -> None:
        """Commit what `begin` has sent; `finish` answers its callers. Raises as `begin`."""
        try:
            await self._naming_successor(self._commit_until_known(assembly))
        except BaseException as error:
            self._fail(assembly, error)
            raise
        self.finish()
        self._unfinished = assembly
        if assembly.batch is not None:
            self._acknowledged_id = assembly.batch.last_id
            self.rows += assembly.batch.row_count
            self.batches += 1
            self.batch_rows_last = assembly.batch.row_count
            self.batch_sizes.add(assembly.batch.row_count)
            duration_ns = self._clock.monotonic_ns() - assembly.began_ns
            self.timing.add(duration_ns / 1e9)
            if self._tracing is not None:
                self._trace = self._traced(self._tracing, assembly, assembly.batch)

    async def _naming_successor(self, commit: Awaitable[None]) -> None:
        """Wait for `commit`; where it was fenced, look who has taken the chain over, if anybody."""
        try:
            await commit
        except Fenced as error:
            with suppress(RetryError, ConnectError, TimeoutError):
                async with asyncio.timeout(_FENCED_LOOK_SECONDS):
                    error = error.named_by(await self._store.look())
            raise error from error.__cause__

    def _fail(self, assembly: Assembly, error: BaseException) -> None:
        self.finish()
        if self._tracing is not None and assembly.batch is not None:
            self._traced(self._tracing, assembly, assembly.batch, error)
        assembly.fail(_as_answer(error, assembly.batch))

    def _traced(
        self,
        tracing: Tracing,
        assembly: Assembly,
        batch: Batch,
        error: BaseException | None = None,
    ) -> Context:
        """Make the span of a commit that has ended; return its trace."""
        ended_ns = self._clock.wall_ns()
        duration_ns = self._clock.monotonic_ns() - assembly.began_ns
        return tracing.committed(batch, ended_ns - duration_ns, ended_ns, error)

    def leads_with(self, assembly: Assembly) -> bool:
        """Say whether ids may be given after those of `assembly`: its epoch is still the last."""
        return assembly.core is self._core

    def follow(self, current: Assembly, assembly: Assembly) -> None:
        """Have the server begin `assembly` as soon as `current` has ended, if it can."""
        if current.pending is not None and assembly.batch is not None:
            assembly.pending = current.pending.follow(
                assembly.batch, published_id=self._published_id(), intake=assembly.intake
            )

    def give_up(self, assembly: Assembly, error: Exception) -> None:
        """Answer the callers of the assembly that was to follow a commit that raised `error`.

        If it was sent, it may have been committed, unless the fence prevents it.
        """
        batch = assembly.batch
        if assembly.pending is not None and batch is not None and not isinstance(error, Fenced):
            error = UnknownOutcome(batch.chain_id, batch.epoch, batch.first_id, batch.last_id)
        assembly.fail(error)

    def answer(self) -> None:
        """Answer the callers of the last commit; what is left is for `finish`."""
        if self._unfinished is not None:
            self._unfinished.answer()

    def finish(self) -> None:
        """Answer the callers of the last commit, and offer its batch to the publisher."""
        assembly, self._unfinished = self._unfinished, None
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

    async def _send(self, assembly: Assembly) -> None:
        """Send `assembly` under the epoch of now. What the store refuses is said by its outcome."""
        if assembly.pending is not None:
            return  # whatever has happened since, its outcome comes first
        if assembly.core is not self._core:
            # Something went wrong and raised the epoch: ids and seal are void.
            assembly.give_ids(self._leading(), self._wall_ns())
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
        backoff: Backoff | None = None
        while True:
            batch = assembly.batch
            pending, assembly.pending = assembly.pending, None
            try:
                if pending is None:
                    await self._move_intake(assembly)
                else:
                    await pending.outcome()
            except UnknownOutcome as error:
                self.unknown_outcomes += 1
                _log.warning("%s; taking over again to find out", error)
                if batch is not None and await self._is_found(assembly, batch, error, deadline_ns):
                    break
                failure = RetryError(f"commit: the connection broke, and nothing came of {error}")
            except RetryError as error:
                self._outage.repeat(f"chain {self._config.chain_id}: {error}; trying again")
                await self._take_over_until(deadline_ns, error)
                failure = error
            else:
                break
            backoff = backoff or self._backoff(is_first_at_once=True)
            await self._pause(backoff, deadline_ns, failure)
            await self._send(assembly)
        if backoff is not None:
            self._outage.log()

    async def _move_intake(self, assembly: Assembly) -> None:
        # An entry without orders asks whether we lead, over a connection that works.
        if assembly.intake or not all(entry.orders for entry in assembly.entries):
            await self._store.move_intake(assembly.intake)

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
        backoff = self._backoff(is_first_at_once=True)
        while True:
            fenced: Fenced | None = None
            try:
                await self._take_over_until(deadline_ns, unknown)
            except Fenced as error:
                # Another leader has raised it: that ends the old transaction too.
                fenced = error
            try:
                is_committed = await self._store.has_committed(batch)
            except (RetryError, ConnectError):
                await self._pause(backoff, deadline_ns, unknown)
                continue
            if fenced is not None and not is_committed:
                raise fenced
            return is_committed

    async def _take_over_until(self, deadline_ns: int, cause: Exception) -> None:
        """Take over; retry while the database is away. Raises `cause` at the deadline."""

        async def take_over() -> None:
            self.lead(await self._leadership.renew_term())

        await self._until_done(take_over, deadline_ns, cause)

    async def _until_done(
        self,
        work: Callable[[], Awaitable[_Result]],
        deadline_ns: int | None = None,
        cause: Exception | None = None,
    ) -> _Result:
        """Return what `work` returns; retry while the database is away.

        Raises `cause`, or else what `work` raised last, at the deadline.
        """
        deadline_ns = self._deadline_ns() if deadline_ns is None else deadline_ns
        backoff = self._backoff()
        while True:
            try:
                return await work()
            except (RetryError, ConnectError) as error:
                self._outage.repeat(f"chain {self._config.chain_id}: {error}; trying again")
                failure = cause or error
            await self._pause(backoff, deadline_ns, failure)

    def _backoff(self, *, is_first_at_once: bool = False) -> Backoff:
        return Backoff(
            _RETRY_SECONDS,
            _RETRY_SECONDS_MAX,
            is_first_at_once=is_first_at_once,
            random=self._random,
        )

    async def _pause(self, backoff: Backoff, deadline_ns: int, failure: Exception) -> None:
        """Wait before the next try. Raises `failure` if there is no time left for one."""
        seconds = backoff.next_seconds()
        if self._clock.monotonic_ns() + seconds * 1e9 >= deadline_ns:
            raise failure
        await asyncio.sleep(seconds)

    def _deadline_ns(self) -> int:
        return self._clock.monotonic_ns() + int(self._config.recover_seconds * 1e9)

    def _wall_ns(self) -> int:
        """Return the time for the stamp of a batch. Raises ClockError."""
        wall_ns = self._clock.wall_ns()
        self._clock_watch.check_jump(wall_ns, self._clock.monotonic_ns())
        return wall_ns

    def _published_id(self) -> int:
        return self._publisher.published_id if self._publisher is not None else 0

    def _leading(self) -> SequencerCore:
        if self._core is None:
            raise RetryError("not the leader yet")
        return self._core


def _as_answer(error: BaseException, batch: Batch | None) -> Exception:
    """Return the answer for callers. After a stop in mid-commit, the outcome is unknown."""
    if isinstance(error, Exception):
        return error
    if batch is None:
        return RetryError("the sequencer was stopped")
    return UnknownOutcome(batch.chain_id, batch.epoch, batch.first_id, batch.last_id)
