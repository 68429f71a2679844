"""A database in memory, as far as sequencers use one: fence, epochs, and lost answers."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from copy import copy
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from chain_kernel.errors import (
    ChainMissing,
    Fenced,
    IntakeMoved,
    PrimaryBehind,
    RetryError,
    UnknownOutcome,
)
from chain_kernel.model import (
    TERM_SPREAD_IDS,
    FrameTerm,
    IntakeMark,
    IntakeReject,
    LeaseState,
    ServerIdentity,
    Term,
)
from chain_kernel.seal import Batch, genesis_seal
from chain_kernel.testing.memory_log import MemoryLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from chain_kernel.model import ClientNumber, Event, KeyPage, Mark, ShadowReport


class CommitFault(Enum):
    """The fate of one commit."""

    REFUSED = "the server refuses it; nothing is stored"
    LOST_BEFORE = "the connection dies before the server has it; the answer is unknown"
    LOST_AFTER = "the server stores it; the answer is lost"
    LANDS_LATE = "the answer is lost, and the server stores it when the next epoch is about to rise"


class MemoryCommit(Struct, frozen=True):
    """The content of one transaction."""

    batch: Batch
    published_id: int
    intake: tuple[IntakeMark, ...]

    def unknown(self) -> UnknownOutcome:
        """Return the error for an answer that was lost."""
        batch = self.batch
        return UnknownOutcome(batch.chain_id, batch.epoch, batch.first_id, batch.last_id)


_REPLAYED: Final = (
    "epoch", "nonce", "terms", "owner", "lease_counter", "lease_released", "step_down", "batches",
    "published_id", "is_published", "intake", "rejects", "skips", "key_pages", "clients",
    "checkpoints", "states", "shadows", "replicated_id",
)  # fmt: skip


class CommittedChain:
    """One chain as it is stored: what outlives every process."""

    def __init__(self, chain_id: int, database_id: UUID, partition_ids: int = 2**23) -> None:
        self.chain_id = chain_id
        self.database_id = database_id
        self.partition_ids = partition_ids
        self.epoch = 0
        self.nonce = b""
        self.terms: tuple[FrameTerm, ...] = ()
        """The terms of all take-overs, newest first."""
        self.owner = ""
        self.lease_counter = 0
        self.lease_released = True
        self.step_down = False
        self.batches: list[Batch] = []
        self.published_id = 0
        self.is_published = True
        self.intake: dict[str, IntakeMark] = {}
        self.rejects: dict[tuple[str, int], IntakeReject] = {}
        self.skips: list[tuple[int, int]] = []
        self.key_pages: dict[int, KeyPage] = {}
        self.clients: dict[str, ClientNumber] = {}
        self.checkpoints: dict[str, Mark] = {}
        self.states: dict[str, dict[tuple[int, str], bytes]] = {}
        """By receiver, digests of states by order and group."""
        self.shadows: dict[str, ShadowReport] = {}
        self.replicated_id = 0
        """A synchronous standby has the rows up to here: they may be acknowledged."""
        # Commits whose client is gone, but whose transactions may still land, in this order.
        self.in_flight: list[MemoryCommit] = []

    def replay(self, primary: CommittedChain) -> None:
        """Have what is stored of `primary` now, as a standby that has replayed its log."""
        for name in _REPLAYED:
            setattr(self, name, copy(getattr(primary, name)))

    def begin_term(self, nonce: bytes, owner: str = "") -> FrameTerm:
        """Raise the epoch, and return the term that begins."""
        self.epoch += 1
        self.nonce = nonce
        self.owner = owner
        # Made from the nonce, so that it differs each time, and is the same in each run of a seed.
        frame_key = sha256(b"frame key of " + nonce).digest()
        term = FrameTerm(epoch=self.epoch, nonce=nonce, frame_key=frame_key)
        self.terms = (term, *self.terms)
        return term

    @property
    def last_id(self) -> int:
        """head_persisted."""
        return self.batches[-1].last_id if self.batches else 0

    @property
    def last_seal(self) -> bytes:
        """Seal of the head."""
        return (
            self.batches[-1].seal if self.batches else genesis_seal(self.database_id, self.chain_id)
        )

    def admits(self, batch: Batch) -> bool:
        """Return whether `batch` passes the fence: it has the epoch, and follows the head."""
        return self.epoch == batch.epoch and self.last_id == batch.pid

    def refusal(self, intake: Sequence[IntakeMark]) -> IntakeMoved | None:
        """Return what is wrong with `intake`: each mark follows the stored one of its source."""
        stored = {source: mark.position for source, mark in self.intake.items()}
        for mark in intake:
            position = stored.get(mark.source)
            if mark.previous != position:
                return IntakeMoved(mark.source, mark.previous)
            stored[mark.source] = mark.position
        return None

    def store(self, batch: Batch, published_id: int, intake: Sequence[IntakeMark]) -> None:
        """Apply a commit that has passed the fence."""
        self.batches.append(batch)
        self.published_id = max(self.published_id, published_id)
        self.move_intake(intake)

    def move_intake(self, intake: Sequence[IntakeMark]) -> None:
        """Move marks, and record what was refused on the way."""
        for mark in intake:
            self.intake[mark.source] = IntakeMark(
                source=mark.source, position=mark.position, digest=mark.digest
            )
            for reject in mark.rejects:
                self.rejects.setdefault((mark.source, reject.position), reject)

    def settle(self) -> None:
        """End the transactions in flight: a take-over waits for them, or ends them."""
        in_flight, self.in_flight = self.in_flight, []
        for commit in in_flight:
            if self.admits(commit.batch) and not self.refusal(commit.intake):
                self.store(commit.batch, commit.published_id, commit.intake)


class MemoryDatabase:
    """Chains by id. `is_away` makes every call fail as if nothing listened.

    With `cancels_waits` the synchronous standby is gone, and somebody cancels each wait for it: a
    commit is answered with success, and is on this server only.
    """

    def __init__(self, seed: int = 0) -> None:
        self.database_id = UUID(int=seed)
        self.server = ServerIdentity(seed, 1)
        self.chains: dict[int, CommittedChain] = {}
        self.notices: dict[int, MemoryLog] = defaultdict(MemoryLog)
        """By chain, what was notified here; a standby that is promoted begins with nothing."""
        self.is_away = False
        self.cancels_waits = False
        self._nonces = seed

    def create(self, chain_id: int, *, partition_ids: int = 2**23) -> CommittedChain:
        """Make a chain and return it."""
        chain = CommittedChain(chain_id, self.database_id, partition_ids)
        self.chains[chain_id] = chain
        return chain

    def of_term(self, term: Term) -> CommittedChain:
        """Return the chain of `term`. Raises RetryError while away, and where this is not the
        server of the term.
        """
        if self.is_away:
            raise RetryError("the database is away")
        chain = self.chains[term.chain_id]
        if self.server != term.server or all(each.nonce != term.nonce for each in chain.terms):
            raise RetryError(f"not the server of the term ({term.server}), but {self.server}")
        return chain

    def draw_nonce(self) -> bytes:
        """Return a nonce that was never drawn before."""
        self._nonces += 1
        return self._nonces.to_bytes(16, "big")


class MemoryPending:
    """Implements `chain_kernel.ports.PendingCommit`: a commit on its way to a `MemoryChainStore`.

    It arrives when its outcome is asked for, and what follows it right after it.
    """

    def __init__(self, store: MemoryChainStore, commit: MemoryCommit) -> None:
        self._store = store
        self._commit = commit
        self._follower: MemoryPending | None = None
        self._has_arrived = False
        self._error: Exception | None = None

    async def outcome(self) -> None:
        """Wait for the end."""
        try:
            await asyncio.sleep(0)  # the real one waits, and a caller may go away then
        except BaseException:
            self._store.give_up()
            self._arrive(self._store.arrive_after)
            raise
        self._arrive(self._store.arrive)
        if self._error is not None:
            raise self._error

    def follow(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> MemoryPending | None:
        """Have it arrive after this one."""
        if self._follower is not None or not self._store.is_open:
            return None
        commit = MemoryCommit(batch, published_id, tuple(intake))
        self._follower = MemoryPending(self._store, commit)
        if self._has_arrived:
            self._follower._arrive(self._store.arrive_after)
        return self._follower

    def _arrive(self, at: Callable[[MemoryCommit], Exception | None]) -> None:
        if self._has_arrived:
            return
        self._has_arrived = True
        try:
            self._error = at(self._commit)
        except Exception as error:  # noqa: BLE001 - it is the answer
            self._store.give_up()
            self._error = error
        if self._follower is not None:
            self._follower._arrive(self._store.arrive_after)


class MemoryChainStore:
    """One process's view of a chain; implements `chain_kernel.ports.ChainStore`.

    `faults` lists what happens to the next commits, one each; then they succeed.
    """

    def __init__(
        self,
        database: MemoryDatabase,
        chain_id: int,
        drawn: set[bytes] | None = None,
        *,
        is_published: bool = True,
    ) -> None:
        """`is_published`: whether its leaders have a broker."""
        self._is_published = is_published
        self.database = database
        self.faults: deque[CommitFault] = deque()
        self.drawn: set[bytes] = set() if drawn is None else drawn
        """The nonces of take-overs whose answers have not arrived."""
        self._chain_id = chain_id
        self._term: Term | None = None
        self._fault: CommitFault | None = None

    async def look(self) -> LeaseState:
        """Return who leads."""
        chain = self._chain()
        return LeaseState(
            epoch=chain.epoch,
            nonce=chain.nonce,
            counter=chain.lease_counter,
            released=chain.lease_released,
            owner=chain.owner,
            topic=f"orders.{self._chain_id}",
            partition=0,
            is_published=chain.is_published,
            is_ours=chain.nonce in self.drawn,
        )

    async def take_over(self, owner: str, seen: LeaseState) -> Term:
        """Raise the epoch."""
        term = self.raise_over(owner, seen.nonce, seen.counter)
        self.drawn.clear()
        return term

    async def take_over_again(self, owner: str, held: Term) -> Term:
        """Raise our own epoch."""
        nonce = self._chain().nonce
        term = self.raise_over(owner, nonce if nonce in self.drawn else held.nonce)
        self.drawn.clear()
        return term

    def raise_over(self, owner: str, nonce: bytes, counter: int | None = None) -> Term:
        """Raise the epoch by compare-and-set; without `counter` over a lease of our own."""
        chain = self._chain()
        if chain.nonce != nonce or counter not in (None, chain.lease_counter):
            raise Fenced(self._chain_id, chain.epoch)
        if counter is not None:
            chain.step_down = False
        return self._raise_epoch(owner)

    def _raise_epoch(self, owner: str) -> Term:
        chain = self._chain()
        chain.settle()
        drawn = chain.begin_term(self.database.draw_nonce(), owner)
        chain.lease_counter += 1
        chain.lease_released = False
        was_published, chain.is_published = chain.is_published, self._is_published
        if chain.published_id < chain.last_id and not (was_published and self._is_published):
            chain.skips.append((chain.published_id, chain.last_id))
            chain.published_id = chain.last_id
        self.drawn.add(chain.nonce)
        self._term = term = Term(
            chain_id=chain.chain_id,
            database_id=chain.database_id,
            epoch=chain.epoch,
            nonce=chain.nonce,
            frame_key=drawn.frame_key,
            last_id=chain.last_id,
            last_seal=chain.last_seal,
            last_committed_at_us=chain.batches[-1].committed_at_us if chain.batches else 0,
            published_id=chain.published_id,
            topic=f"orders.{chain.chain_id}",
            partition=0,
            key_salt=chain.chain_id,
            partition_ids=chain.partition_ids,
            server=self.database.server,
            spread=int.from_bytes(drawn.frame_key[:4], "big") % TERM_SPREAD_IDS,
        )
        self._require_standby()
        return term

    async def begin(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> MemoryPending:
        """Have it arrive when its outcome is asked for."""
        self._leading()
        return MemoryPending(self, MemoryCommit(batch, published_id, tuple(intake)))

    def arrive(self, commit: MemoryCommit) -> Exception | None:
        """Do what is under way; return what it raises."""
        self._fault = None
        return self._arrive(commit)

    def arrive_after(self, commit: MemoryCommit) -> Exception | None:
        """The same for one that follows: on a connection that was lost it shares the fate."""
        if self._term is not None:
            return self._arrive(commit)
        self._store_lost(commit)
        return commit.unknown()

    @property
    def is_open(self) -> bool:
        """True if the connection is there still, and leads."""
        return self._term is not None

    def give_up(self) -> None:
        """Lose the connection, as who goes away in mid commit does."""
        self._term = None

    def _arrive(self, commit: MemoryCommit) -> Exception | None:
        """Do what the next fault leaves of `commit`; return what it raises."""
        chain = self._leading()
        fault = self._fault = self.faults.popleft() if self.faults else None
        if fault is CommitFault.REFUSED:
            self._term = None
            return RetryError("commit: refused")
        is_ours = chain.admits(commit.batch)
        if fault is not None:
            self._term = None
            if is_ours:
                self._store_lost(commit)
            return commit.unknown()
        if not is_ours:
            self._term = None
            return Fenced(commit.batch.chain_id, commit.batch.epoch)
        if refusal := chain.refusal(commit.intake):
            self._term = None
            return refusal
        chain.store(commit.batch, commit.published_id, commit.intake)
        if not self._is_replicated():
            self._term = None
            return commit.unknown()
        return None

    def _is_replicated(self) -> bool:
        """Wait for the synchronous standby; return whether it has what was committed."""
        if self.database.cancels_waits:
            return False
        chain = self._chain()
        chain.replicated_id = chain.last_id
        return True

    def _require_standby(self) -> None:
        """Raise RetryError where the standby does not have what was committed."""
        if not self._is_replicated():
            self._term = None
            raise RetryError("the wait for a synchronous standby was cancelled")

    def _store_lost(self, commit: MemoryCommit) -> None:
        """Store a commit whose answer is lost, now or later."""
        chain = self._chain()
        is_good = chain.admits(commit.batch) and not chain.refusal(commit.intake)
        if self._fault is CommitFault.LOST_AFTER and is_good:
            chain.store(commit.batch, commit.published_id, commit.intake)
        if self._fault is CommitFault.LANDS_LATE:
            chain.in_flight.append(commit)

    async def move_intake(self, intake: Sequence[IntakeMark]) -> None:
        """Store intake marks alone."""
        chain = self._fenced()
        # It may be called twice, where the first answer was lost.
        is_done = all(
            (stored := chain.intake.get(mark.source)) is not None
            and (stored.position, stored.digest) == (mark.position, mark.digest)
            for mark in {mark.source: mark for mark in intake}.values()
        )
        refusal = chain.refusal(intake)
        if refusal and not is_done:
            self._term = None
            raise refusal
        chain.move_intake(intake)

    async def has_committed(self, batch: Batch) -> bool:
        """Return whether `batch` is stored."""
        is_there = any(
            (stored.pid, stored.epoch, stored.seal) == (batch.pid, batch.epoch, batch.seal)
            for stored in self._chain().batches
        )
        if is_there:
            self._require_standby()
        return is_there

    async def skip_published(self, after_id: int, until_id: int) -> None:
        """Record a skipped range."""
        chain = self._fenced()
        if chain.published_id < until_id:
            chain.skips.append((max(after_id, chain.published_id), until_id))
            chain.published_id = until_id

    async def rows_after(self, after_id: int, at_most: int) -> int:
        """Count rows."""
        del at_most  # in memory, counting all of them costs nothing
        return sum(batch.row_count for batch in self._leading().batches if batch.last_id > after_id)

    async def batches(self, after_id: int) -> AsyncIterator[Batch]:
        """Yield the batches after `after_id`."""
        for batch in list(self._leading().batches):
            if batch.last_id > after_id:
                yield batch

    async def intake(self, source: str) -> IntakeMark | None:
        """Return how far `source` was read."""
        return self._leading().intake.get(source)

    async def close(self) -> None:
        """Forget the term."""
        self._term = None

    def _chain(self) -> CommittedChain:
        if self.database.is_away:
            raise RetryError("the database is away")
        try:
            return self.database.chains[self._chain_id]
        except KeyError:
            raise ChainMissing(self._chain_id) from None

    def _leading(self) -> CommittedChain:
        """Return the chain while a term is held; like the real one, even if another one leads."""
        if self._term is None:
            raise RetryError("the connection to the database was given up")
        return self._chain()

    def _fenced(self) -> CommittedChain:
        """Return the chain while the term is still ours. Raises Fenced."""
        chain = self._leading()
        if self._term is None or chain.nonce != self._term.nonce:
            raise Fenced(self._chain_id, chain.epoch)
        return chain


class MemoryLease:
    """One process's hold on a chain's lease; implements `chain_kernel.ports.Lease`."""

    def __init__(self, database: MemoryDatabase, chain_id: int) -> None:
        self._database = database
        self._chain_id = chain_id

    async def renew(self, term: Term, published_id: int) -> bool:
        """Raise the counter."""
        chain = self._held(term, published_id)
        chain.lease_counter += 1
        return chain.step_down

    async def release(self, term: Term, published_id: int) -> None:
        """Hand over."""
        chain = self._held(term, published_id)
        chain.lease_counter += 1
        chain.lease_released = True
        chain.step_down = False

    async def notify(self, term: Term, frame: bytes) -> None:
        """Append to the notices of its chain; see `chain_kernel.ports.Lease.notify`."""
        self._database.of_term(term)
        self._database.notices[self._chain_id].append([frame])

    async def close(self) -> None:
        """Nothing is held."""

    def _held(self, term: Term, published_id: int) -> CommittedChain:
        chain = self._database.of_term(term)
        if chain.epoch != term.epoch:
            raise Fenced(self._chain_id, term.epoch, chain.epoch, chain.owner)
        if chain.last_id < published_id:
            raise PrimaryBehind(self._chain_id, chain.last_id, published_id)
        if chain.nonce == term.nonce:
            chain.published_id = max(chain.published_id, published_id)
        return chain


class MemoryKeyStore:
    """Keys of a chain in memory; implements `chain_kernel.ports.KeyStore`."""

    def __init__(self, database: MemoryDatabase, chain_id: int) -> None:
        self._database = database
        self._chain_id = chain_id

    async def rows(self, term: Term, ids: Sequence[int]) -> list[Event]:
        """Return rows by id."""
        wanted = set(ids)
        return [event for event in self._events(term) if event.id in wanted]

    async def outline(self, term: Term) -> list[tuple[int, int, int]]:
        """Return which pages there are."""
        pages = self._database.of_term(term).key_pages.values()
        return sorted((page.after_id, page.until_id, len(page.hashes) // 8) for page in pages)

    async def page(self, term: Term, after_id: int) -> KeyPage:
        """Return one page."""
        page = self._database.of_term(term).key_pages.get(after_id)
        if page is None:
            raise RetryError(f"chain {self._chain_id}: the page of keys after {after_id} is gone")
        return page

    async def clients(self, term: Term) -> list[ClientNumber]:
        """Return all clients."""
        return list(self._database.of_term(term).clients.values())

    async def keys(
        self, term: Term, after_id: int, until_id: int, at_most: int
    ) -> list[tuple[int, str]]:
        """Return the next keys."""
        events = self._events(term)
        rows = [(event.id, event.key) for event in events if after_id < event.id <= until_id]
        return rows[:at_most]

    async def archived_until(self, term: Term) -> int:
        """Return 0: nothing is archived in memory."""
        self._database.of_term(term)
        return 0

    async def save(self, term: Term, page: KeyPage, clients: Sequence[ClientNumber]) -> None:
        """Store a page with its clients."""
        chain = self._database.of_term(term)
        if (chain.epoch, chain.nonce) != (term.epoch, term.nonce):
            raise RetryError(f"chain {self._chain_id}: epoch {term.epoch} has ended")
        chain.key_pages[page.after_id] = page
        for known in clients:
            stored = chain.clients.get(known.client)
            if stored is None or stored.number < known.number:
                chain.clients[known.client] = known

    async def forget(self, term: Term, until_id: int) -> None:
        """Drop old pages."""
        chain = self._database.of_term(term)
        if (chain.epoch, chain.nonce) != (term.epoch, term.nonce):
            return
        for page in [page for page in chain.key_pages.values() if page.until_id <= until_id]:
            del chain.key_pages[page.after_id]

    async def close(self) -> None:
        """Nothing is held."""

    def _events(self, term: Term) -> list[Event]:
        return [event for batch in self._database.of_term(term).batches for event in batch.events]
