"""The database of a receiver, in memory: the rows that it reads, and its checkpoint.

Rows come from the primary, and from standbys that lag. A checkpoint may be part of a transaction of
the caller, which commits it together with its effects.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from chain_kernel.errors import (
    BatchDamaged,
    ChainMissing,
    CheckpointLost,
    ForkFound,
    NotYetReadable,
    RetryError,
    RowsMissing,
    SealMismatch,
    SettingError,
)
from chain_kernel.model import (
    ROWS_AHEAD_BATCHES,
    TERMS_MAX,
    ChainHead,
    ChainPosition,
    FrameTerm,
    Mark,
    Run,
    StoredState,
    StoredStates,
)
from chain_kernel.ports import NO_STATES
from chain_kernel.seal import event_pages, genesis_seal, next_seal
from chain_kernel.testing.memory_store import CommittedChain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
    from uuid import UUID

    from chain_kernel.errors import HaltError
    from chain_kernel.model import Event, Gap, ShadowReport
    from chain_kernel.seal import Batch
    from chain_kernel.testing.memory_store import MemoryDatabase


_T = TypeVar("_T")


class Ask(Protocol):
    """The way to the database: it does `work` there, and returns what that returns.

    Raises RetryError where the question or its answer gets lost.
    """

    async def __call__(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T: ...  # noqa: D102


async def ask_at_once(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Do `work` without losing anything."""
    return await work()


PAGE_ROWS: Final = 5_000
"""Rows of a run, as the real reader has it."""


class SeenChain(Protocol):
    """A chain as a reader sees it: a `CommittedChain`, or what a test uses instead."""

    @property
    def chain_id(self) -> int: ...  # noqa: D102 - the words of design and kernel
    @property
    def database_id(self) -> UUID: ...  # noqa: D102
    @property
    def epoch(self) -> int: ...  # noqa: D102
    @property
    def nonce(self) -> bytes: ...  # noqa: D102
    @property
    def terms(self) -> Sequence[FrameTerm]: ...  # noqa: D102
    @property
    def published_id(self) -> int: ...  # noqa: D102
    @property
    def batches(self) -> Sequence[Batch]: ...  # noqa: D102


def mark_at(chain: SeenChain, at_id: int) -> Mark:
    """Return the mark after `at_id`, whether there is such a row or not."""
    for batch in reversed(chain.batches):
        if batch.last_id <= at_id:
            return Mark(id=at_id, batch_last_id=batch.last_id, seal=batch.seal, epoch=batch.epoch)
    genesis = genesis_seal(chain.database_id, chain.chain_id)
    return Mark(id=at_id, batch_last_id=0, seal=genesis, epoch=0)


def seal_at(chain: SeenChain, batch_id: int | None) -> bytes | None:
    """Return the seal after the batch that ends at `batch_id`; None when none ends there."""
    mark = None if batch_id is None else mark_at(chain, batch_id)
    return mark.seal if mark is not None and mark.is_batch_end else None


def rows_ahead(chain: SeenChain, at_id: int, batches_max: int = ROWS_AHEAD_BATCHES) -> int:
    """Return how many rows the next batches have; see `chain_kernel.model.ChainPosition`."""
    ahead = [batch.row_count for batch in chain.batches if batch.last_id > at_id]
    return sum(ahead[:batches_max])


def head_of(chain: SeenChain) -> ChainHead:
    """Return the head row of `chain`."""
    last_id = chain.batches[-1].last_id if chain.batches else 0
    return ChainHead(
        chain_id=chain.chain_id,
        database_id=chain.database_id,
        epoch=chain.epoch,
        nonce=chain.nonce,
        last_id=last_id,
        last_seal=mark_at(chain, last_id).seal,
        published_id=chain.published_id,
        topic=f"orders.{chain.chain_id}",
        partition=0,
        is_published=True,
    )


def rows_between(chain: SeenChain, after_id: int, until_id: int, at_most: int) -> list[Event]:
    """Return the next rows after `after_id`, up to `until_id`."""
    found: list[Event] = []
    for batch in chain.batches:
        if batch.last_id > after_id:
            found += [event for event in batch.events if after_id < event.id <= until_id]
        if len(found) >= at_most or batch.last_id >= until_id:
            break
    return found[:at_most]


def damage_of(chain: SeenChain, batch: Batch) -> BatchDamaged | None:
    """Return what is wrong with a batch whose rows do not give its seal."""
    found = next_seal(
        mark_at(chain, batch.pid).seal,
        epoch=batch.epoch,
        first_id=batch.first_id,
        last_id=batch.last_id,
        row_count=batch.row_count,
        committed_at_us=batch.committed_at_us,
        pages=event_pages(batch.events),
    )
    if found == batch.seal:
        return None
    return BatchDamaged(chain.chain_id, batch.first_id, batch.last_id, batch.seal, found)


class MemoryReplica:
    """A standby of a database: it shows its primary as it was at the last replay."""

    def __init__(self, database: MemoryDatabase, chain_id: int) -> None:
        self.database = database
        """The primary; may be set to one that was promoted."""
        self._chain_id = chain_id
        self.chain = self._copy()

    def replay(self) -> None:
        """Catch up with the primary."""
        self.chain = self._copy()

    def _copy(self) -> CommittedChain:
        primary = self.database.chains[self._chain_id]
        copy = CommittedChain(primary.chain_id, primary.database_id, primary.partition_ids)
        copy.replay(primary)
        return copy


class MemoryGapSource:
    """Reads what a receiver lacks; implements `chain_kernel.ports.GapSource`.

    `see` returns the chain as the server shows it now: the primary's, or with `is_primary=False` a
    standby's. `ask` is the way there.
    """

    def __init__(
        self,
        see: Callable[[], SeenChain],
        *,
        is_primary: bool = True,
        page_rows: int = PAGE_ROWS,
        ask: Ask = ask_at_once,
        chain_id: int | None = None,
    ) -> None:
        self._see = see
        self._chain_id = chain_id
        self._ask = ask
        self.is_primary = is_primary
        self.page_rows = page_rows
        self.is_closed = False

    @classmethod
    def of_database(
        cls,
        database: MemoryDatabase,
        chain_id: int,
        *,
        page_rows: int = PAGE_ROWS,
        ask: Ask = ask_at_once,
    ) -> MemoryGapSource:
        """Return a source over the primary."""

        def see() -> SeenChain:
            if database.is_away:
                raise RetryError("the database is away")
            if chain_id not in database.chains:
                raise ChainMissing(chain_id)
            return database.chains[chain_id]

        return cls(see, page_rows=page_rows, ask=ask, chain_id=chain_id)

    @property
    def chain_id(self) -> int:
        """The chain that it reads."""
        return self._see().chain_id if self._chain_id is None else self._chain_id

    async def standing(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        """Return head and mark of one instant."""

        async def look() -> ChainPosition:
            chain = self._see()
            is_there = at_id == 0 or bool(rows_between(chain, at_id - 1, at_id, 1))
            mark = mark_at(chain, at_id) if is_there else None
            return ChainPosition(
                head=head_of(chain),
                mark=mark,
                is_primary=self.is_primary,
                terms=tuple(chain.terms[:TERMS_MAX]),
                batch_seal=seal_at(chain, batch_id),
                rows_ahead=rows_ahead(chain, at_id),
            )

        return await self._ask(look)

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        """Yield linked runs."""
        after = await self._check_start(after)
        if from_primary and not self.is_primary:
            raise NotYetReadable(after.id, until_id)
        start_id = after.id

        async def page() -> Run:
            chain = self._see()
            events = rows_between(chain, after.id, until_id, self.page_rows)
            if not events and not self.is_primary:
                raise NotYetReadable(after.id, until_id)
            if not events:
                raise RowsMissing(chain.chain_id, after.id, until_id)
            if events[0].pid != after.id:
                raise ForkFound(chain.chain_id, events[0].pid, after.id, events[0].id)
            events = self._proven(chain, events, start_id, until_id)
            end = mark_at(chain, events[-1].id)
            is_within = after.batch_last_id < start_id
            return Run(chain_id=chain.chain_id, events=events, end=end, begins_within=is_within)

        try:
            while after.id < until_id:
                run = await self._ask(page)
                yield run
                after = run.end
        finally:
            # Like the real one, which at its end waits for a page that it was reading ahead: there
            # the caller that closes it may be cancelled.
            await asyncio.sleep(0)

    def _proven(
        self, chain: SeenChain, events: list[Event], start_id: int, until_id: int
    ) -> list[Event]:
        """Return the first of `events`, as far as a fill that began at `start_id` may hand them on.

        As in the real one, rows of a batch wait for its end, unless they are more than a page; and
        a batch whose rows were all read gives its seal. Raises BatchDamaged; on a standby
        NotYetReadable.
        """
        first_pid, last_id = events[0].pid, events[-1].id
        ends = [batch for batch in chain.batches if first_pid < batch.last_id <= last_id]
        if ends and last_id < until_id:
            events = [event for event in events if event.id <= ends[-1].last_id]
        for batch in ends:
            damaged = damage_of(chain, batch) if batch.pid >= start_id else None
            if damaged is None:
                continue
            events = [event for event in events if event.id <= batch.pid]
            if not events:
                raise damaged if self.is_primary else NotYetReadable(first_pid, until_id)
            break
        return events

    async def row_at_or_before(self, until_id: int) -> int:
        """Return a row's id."""

        async def look() -> int:
            ids = (event.id for batch in self._see().batches for event in batch.events)
            return max((id_ for id_ in ids if id_ <= until_id), default=0)

        return await self._ask(look)

    async def row_before_time(self, time_us: int) -> int:
        """Return a row's id."""

        async def look() -> int:
            before = (each for each in self._see().batches if each.committed_at_us < time_us)
            return max((batch.last_id for batch in before), default=0)

        return await self._ask(look)

    async def close(self) -> None:
        """Nothing is held."""
        self.is_closed = True

    async def _check_start(self, after: Mark) -> Mark:
        """Return the database's mark for `after`; refuse a place that it does not have."""
        standing = await self.standing(after.id, after.batch_last_id)
        mark = standing.mark
        if mark is not None and standing.batch_seal == after.seal:
            return mark
        if not standing.is_primary:
            raise NotYetReadable(after.batch_last_id, after.id)
        if mark is None:
            raise ForkFound(standing.head.chain_id, after.batch_last_id, after.id, None)
        found = standing.batch_seal or b""
        raise SealMismatch(standing.head.chain_id, after.batch_last_id, after.seal, found)


class MemoryTransaction:
    """A caller's own transaction: at its commit all of it happens, or nothing.

    It is given as `connection` to `Receiver.checkpoint`. Without a commit it was rolled back.
    For simulated worlds: a service under test uses what `MemoryChain.connect` returns.
    """

    def __init__(self) -> None:
        self._checks: list[Callable[[], None]] = []
        self._effects: list[Callable[[], None]] = []
        self._is_over = False

    def is_in_transaction(self) -> bool:
        """True if it has not been committed yet, as a driver's connection reports it."""
        return not self._is_over

    @property
    def required(self) -> MemoryTransaction:
        """Itself. Raises SettingError when it has been committed."""
        if self._is_over:
            raise SettingError("connection", "outside of a transaction", "one in a transaction")
        return self

    def add(self, effect: Callable[[], None]) -> None:
        """Have `effect` take place at the commit."""
        self._effects.append(effect)

    def check(self, check: Callable[[], None]) -> None:
        """Call `check` at the commit; what it raises rolls everything back."""
        self._checks.append(check)

    async def commit(self) -> None:
        """Take effect at one instant. Raises CheckpointLost, as a wait for the row's lock would."""
        self._is_over = True
        for check in self._checks:
            check()
        for effect in self._effects:
            effect()


class MemoryCheckpointStore:
    """One receiver's place; implements `chain_kernel.ports.CheckpointStore`.

    `ask` is the way there.
    """

    def __init__(
        self, database: MemoryDatabase, chain_id: int, receiver: str, ask: Ask = ask_at_once
    ) -> None:
        self._database = database
        self._chain_id = chain_id
        self._receiver = receiver
        self._ask = ask
        self._in_doubt: list[Mark] = []

    @property
    def chain_id(self) -> int:
        """The chain in which the place is."""
        return self._chain_id

    @property
    def receiver(self) -> str:
        """The receiver's name."""
        return self._receiver

    @property
    def keeps_place(self) -> bool:
        """It does."""
        return True

    @property
    def database_id(self) -> UUID:
        """The database in memory."""
        return self._database.database_id

    async def record_halt(self, error: HaltError, at_id: int) -> None:
        """Nothing is kept: a halt is no row in memory."""

    def record_gap(self, gap: Gap) -> None:
        """Nothing is kept; see `Receiver.gaps`."""

    async def load(self) -> Mark | None:
        """Return the stored place."""
        return await self._ask(self._stored)

    async def save(
        self,
        first_pid: int,
        end: Mark,
        connection: object | None = None,
        states: Mapping[str, bytes] = NO_STATES,
    ) -> None:
        """Move the place by compare-and-set, and store states there.

        `connection` is a MemoryConnection, or a MemoryTransaction.
        """
        if end.id < first_pid:
            raise SettingError("end of a checkpoint", end.id, f"a place from {first_pid} on")
        if connection is not None:
            transaction = getattr(connection, "required", None)
            if transaction is None:
                expected = "one of the database in memory, such as `await chain.connect()`"
                raise SettingError("connection", type(connection).__name__, expected)
            first_pid = self._from(first_pid)
            self._check(first_pid, end)
            transaction.check(lambda: self._check(first_pid, end))
            transaction.add(lambda: self._put(end, states))
            return

        async def move() -> None:
            self._check(self._from(first_pid), end)
            self._put(end, states)

        try:
            await self._ask(move)
        except CheckpointLost:
            raise
        except BaseException:
            self._in_doubt.append(end)
            raise
        self._in_doubt.clear()

    async def close(self) -> None:
        """Nothing is held."""

    async def _stored(self) -> Mark | None:
        return self._chain().checkpoints.get(self._receiver)

    def _from(self, first_pid: int) -> int:
        """Return the place to move from: a save whose answer was lost may have been stored."""
        stored = self._chain().checkpoints.get(self._receiver)
        return stored.id if stored is not None and stored in self._in_doubt else first_pid

    def _check(self, first_pid: int, end: Mark) -> None:
        stored = self._chain().checkpoints.get(self._receiver)
        if stored is None:
            is_where_it_was = first_pid in (0, end.id)
        else:
            is_where_it_was = stored.id == first_pid and end.id >= stored.id
        if not is_where_it_was:
            found_id = None if stored is None else stored.id
            raise CheckpointLost(self._chain_id, self._receiver, first_pid, found_id)

    def _put(self, end: Mark, states: Mapping[str, bytes]) -> None:
        chain = self._chain()
        chain.checkpoints[self._receiver] = end
        own = chain.states.setdefault(self._receiver, {})
        own.update({(end.id, group): digest for group, digest in states.items()})

    def _chain(self) -> CommittedChain:
        if self._database.is_away:
            raise RetryError("the database is away")
        try:
            return self._database.chains[self._chain_id]
        except KeyError:
            raise ChainMissing(self._chain_id) from None


STATES_READ: Final = 2
"""Orders whose states a shadow reads at once: few, so that it reads them in parts."""


class MemoryShadowStore(MemoryCheckpointStore):
    """A shadow's store; implements `chain_kernel.ports.ShadowStore`."""

    def __init__(
        self,
        database: MemoryDatabase,
        chain_id: int,
        receiver: str,
        shadow_of: str,
        ask: Ask = ask_at_once,
    ) -> None:
        if shadow_of == receiver:
            raise SettingError("shadow_of", shadow_of, "another name than the shadow's own")
        super().__init__(database, chain_id, receiver, ask)
        self.shadow_of = shadow_of

    @property
    def keeps_place(self) -> bool:
        """It keeps none."""
        return False

    async def load(self) -> Mark | None:
        """Return no place. Raises SettingError for a name under which one is kept."""
        if await super().load() is not None:
            expected = "one under which no receiver keeps its checkpoint in this database"
            raise SettingError("receiver's name", self.receiver, expected)
        return None

    async def save(
        self,
        first_pid: int,
        end: Mark,
        connection: object | None = None,
        states: Mapping[str, bytes] = NO_STATES,
    ) -> None:
        """Keep nothing."""

    async def other_states(self, after_id: int) -> StoredStates:
        """Return what the other receiver has stored."""

        async def look() -> StoredStates:
            chain = self._chain()
            place = chain.checkpoints.get(self.shadow_of)
            if place is None:
                expected = f"a receiver of chain {chain.chain_id} that stores or reports its place"
                raise SettingError("shadow_of", self.shadow_of, expected)
            stored = chain.states.get(self.shadow_of, {})
            found = [
                StoredState(at_id, group, digest)
                for (at_id, group), digest in sorted(stored.items())
                if after_id < at_id <= place.id
            ]
            # A few at once, and all of the last order.
            ends = sorted({state.id for state in found})[:STATES_READ]
            is_cut = len(ends) == STATES_READ
            until_id = ends[-1] if is_cut else place.id
            return StoredStates(until_id, tuple(each for each in found if each.id <= until_id))

        return await self._ask(look)

    def record(self, report: ShadowReport, states: Sequence[StoredState] = ()) -> None:
        """Keep the result, and the shadow's own states; the real one waits for its database."""
        chain = self._database.chains[self.chain_id]
        chain.shadows[self.receiver] = report
        own = chain.states.setdefault(self.receiver, {})
        own.update({(each.id, each.group): each.digest for each in states})
