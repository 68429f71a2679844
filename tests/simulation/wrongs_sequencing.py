"""Wrongs done to sequencers and intakes, and to what they store."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from chain_kernel.errors import ConnectError, RetryError, TopicError
from chain_kernel.testing.memory_store import CommittedChain, MemoryChainStore, MemoryDatabase
from sequencer.assembly import Assembler
from sequencer.committer import Committer
from sequencer.intake.topic import TopicIntake
from sequencer.keys.keeper import KeyKeeper
from sequencer.keys.memory import ClientNumbers, KeyMemory, KeyTable
from sequencer.leadership import Leadership, LeaseWatch
from sequencer.publisher import Publisher
from sequencer.service import Sequencer
from tests.doubles.hosts import Hosts
from tests.doubles.wired import WiredChainStore, WiredKeyStore, WiredLease

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_kernel.errors import UnknownOutcome
    from chain_kernel.model import Term
    from chain_kernel.seal import Batch


@contextmanager
def no_fence() -> Iterator[None]:
    with patch.object(CommittedChain, "admits", lambda self, batch: True):
        yield


@contextmanager
def blind_retry() -> Iterator[None]:
    """After an unknown outcome the batch is committed again without reading back."""

    async def find_out(
        self: Committer, batch: Batch, unknown: UnknownOutcome, deadline_ns: int
    ) -> bool:
        await self._take_over_until(deadline_ns, unknown)
        return False

    with patch.object(Committer, "_find_out", find_out):
        yield


@contextmanager
def early_reading_back() -> Iterator[None]:
    """The outcome is read back first, and the epoch raised after: the commit lands in between."""
    find_out = Committer._find_out

    async def read_first(
        self: Committer, batch: Batch, unknown: UnknownOutcome, deadline_ns: int
    ) -> bool:
        try:
            is_committed = await self._store.has_committed(batch)
        except (RetryError, ConnectError):
            return await find_out(self, batch, unknown, deadline_ns)
        await self._take_over_until(deadline_ns, unknown)
        return is_committed

    with patch.object(Committer, "_find_out", read_first):
        yield


@contextmanager
def sent_ahead_and_forgotten() -> Iterator[None]:
    """What was sent after a commit that failed is numbered again without reading back."""
    follow = Committer._follow

    def forget(self: Committer, current: Any, assembly: Any) -> None:
        follow(self, current, assembly)
        assembly.pending = None

    with patch.object(Committer, "_follow", forget):
        yield


@contextmanager
def acknowledged_before_commit() -> Iterator[None]:
    commit = Committer._commit_until_known

    async def answer_first(self: Committer, assembly: Any) -> None:
        assembly.answer()
        await commit(self, assembly)

    with patch.object(Committer, "_commit_until_known", answer_first):
        yield


@contextmanager
def published_before_commit() -> Iterator[None]:
    commit = Committer._commit_until_known

    async def publish_first(self: Committer, assembly: Any) -> None:
        if assembly.batch is not None and self._publisher is not None:
            self._publisher.offer(assembly.batch)
        await commit(self, assembly)

    with patch.object(Committer, "_commit_until_known", publish_first):
        yield


@contextmanager
def lost_send_taken_for_success() -> Iterator[None]:
    """What the broker did not take counts as published."""
    publish = Publisher._publish

    async def believe(self: Publisher, batches: list[Batch]) -> None:
        try:
            await publish(self, batches)
        except RetryError:
            self._done_with(batches)
            raise

    with patch.object(Publisher, "_publish", believe):
        yield


@contextmanager
def keys_not_loaded() -> Iterator[None]:
    """A new leader knows no key of the leaders before it."""

    async def load(self: KeyKeeper, term: Term) -> None:
        self._term = term
        self._memory = KeyMemory(self._window_rows, term.key_salt, after_id=term.last_id)

    with patch.object(KeyKeeper, "load", load):
        yield


@contextmanager
def offsets_before_rows() -> Iterator[None]:
    """An intake's place is stored in a transaction of its own, before the rows."""
    begin = WiredChainStore.begin

    async def move_first(self: WiredChainStore, batch: Batch, **given: Any) -> Any:
        intake = given.pop("intake", ())
        if intake:
            await self.move_intake(intake)
        return await begin(self, batch, **given)

    with patch.object(WiredChainStore, "begin", move_first):
        yield


@contextmanager
def offsets_after_rows() -> Iterator[None]:
    """The same, after the rows."""
    begin = WiredChainStore.begin

    async def move_last(self: WiredChainStore, batch: Batch, **given: Any) -> Any:
        intake = given.pop("intake", ())
        pending: Any = await begin(self, batch, **given)
        outcome = pending.outcome

        async def move_then() -> None:
            await outcome()
            if intake:
                await self.move_intake(intake)

        pending.outcome = move_then
        return pending

    with patch.object(WiredChainStore, "begin", move_last):
        yield


@contextmanager
def keys_forgotten_early() -> Iterator[None]:
    make = KeyTable.__init__

    def make_too_small(self: KeyTable, window_rows: int) -> None:
        make(self, window_rows // 4)

    with patch.object(KeyTable, "__init__", make_too_small):
        yield


@contextmanager
def too_old_called_never_accepted() -> Iterator[None]:
    with patch.object(ClientNumbers, "was_never_accepted", lambda *_: True):
        yield


@contextmanager
def stop_without_deadline() -> Iterator[None]:
    """A stop waits for a broker that is away, however long."""
    with patch("tests.simulation.hosts.STOP_SECONDS", 600.0):
        yield


@contextmanager
def publish_queue_without_bound() -> Iterator[None]:
    """A broker that is away is never forgotten."""
    with patch.object(Publisher, "forget", lambda self, until_id: None):
        yield


@contextmanager
def full_queue_holds_up_nothing() -> Iterator[None]:
    """Commits go on while the broker does not keep up."""

    async def room(self: Publisher) -> None:
        pass

    with patch.object(Publisher, "room", room):
        yield


@contextmanager
def part_that_dies_in_silence() -> Iterator[None]:
    with patch.object(Sequencer, "_on_end", lambda *_: None):
        yield


@contextmanager
def callers_in_no_list() -> Iterator[None]:
    """A caller that was taken from the queue is forgotten where no batch can be made."""
    with patch.object(Committer, "_answering", lambda self, entries: nullcontext()):
        yield


@contextmanager
def warning_taken_for_success() -> Iterator[None]:
    """A commit counts that the synchronous standby was not waited for."""
    is_replicated = MemoryChainStore._is_replicated

    def believe(self: MemoryChainStore) -> bool:
        is_replicated(self)
        return True

    with patch.object(MemoryChainStore, "_is_replicated", believe):
        yield


@contextmanager
def mark_before_orders() -> Iterator[None]:
    """An intake moves its mark before its orders are taken, and nothing compares it."""
    queue = TopicIntake._queue

    async def move_first(self: TopicIntake, partition: int, *orders: Any, mark: Any) -> Any:
        self._marks[partition] = mark
        return await queue(self, partition, *orders, mark=mark)

    with (
        patch.object(TopicIntake, "_queue", move_first),
        patch.object(CommittedChain, "refusal", lambda *_: None),
        patch.object(Assembler, "_is_next", lambda *_: True),
    ):
        yield


@contextmanager
def take_over_needs_the_broker() -> Iterator[None]:
    """A new leader ends where the broker does not answer, even if the chain was led before."""
    with patch.object(Leadership, "acquire", _with_sink(RetryError, ConnectError)):
        yield


@contextmanager
def take_over_needs_the_topic() -> Iterator[None]:
    """A new leader ends where the topic is gone."""
    with patch.object(Leadership, "acquire", _with_sink(TopicError)):
        yield


def _with_sink(*ends: type[Exception]) -> Any:
    acquire = Leadership.acquire

    async def check_after(self: Leadership, turn: AsyncExitStack) -> Term:
        term = await acquire(self, turn)
        try:
            if self._sink is not None:
                await self._sink.start(term.topic, term.partition)
        except (RetryError, ConnectError, TopicError) as error:
            if isinstance(error, ends):
                raise
        return term

    return check_after


@contextmanager
def start_ends_with_its_connection() -> Iterator[None]:
    """A read between take-over and open is not tried again."""
    with patch.object(Committer, "taking_over_again", lambda _, work: work()):
        yield


@contextmanager
def own_tries_forgotten() -> Iterator[None]:
    """A take-over takes an earlier try of its own for another leader."""

    async def forget(self: WiredChainStore, held: Term) -> bytes:
        return held.nonce

    with patch.object(WiredChainStore, "_own", forget):
        yield


@contextmanager
def full_queue_waits_without_end() -> Iterator[None]:
    """Commits wait for a broker that never comes back."""
    room = Publisher.room

    async def wait(self: Publisher) -> None:
        while self.is_full and self.away_seconds > 0:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        await room(self)

    with patch.object(Publisher, "room", wait), patch("tests.simulation.client.PATIENT_SHARE", 1.0):
        yield


@contextmanager
def dead_leader_waited_for() -> Iterator[None]:
    """Only a leader that hands over is ever followed."""
    with patch.object(LeaseWatch, "may_take_over", lambda self, sight, *_: sight.released):
        yield


class Unproven(MemoryDatabase):
    """A server that is not asked which one it is."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.chains = database.chains

    def of_term(self, term: Term) -> CommittedChain:
        return self.chains[term.chain_id]


@contextmanager
def _of_any_primary(side: type[WiredKeyStore | WiredLease]) -> Iterator[None]:
    """Sessions of one kind stay where they come to, and prove nothing."""
    make = side._at

    def connected(self: WiredKeyStore | WiredLease, _: Term) -> MemoryDatabase:
        if self._database is None or self._boots != self._wire.server.boots:
            self._database, self._wire.server = self._hosts.find()
            self._boots = self._wire.server.boots
        return self._database

    with (
        patch.object(side, "_connected", connected),
        patch.object(side, "_at", lambda self, database: make(self, Unproven(database))),
    ):
        yield


@contextmanager
def keys_of_any_primary() -> Iterator[None]:
    """Keys are read from what says that it is the primary, wherever they end."""

    async def believe(self: KeyKeeper, term: Term, reached: int) -> None:
        pass

    with _of_any_primary(WiredKeyStore), patch.object(KeyKeeper, "_require_archived", believe):
        yield


@contextmanager
def lease_of_any_primary() -> Iterator[None]:
    """A leader beats where it comes to."""
    with _of_any_primary(WiredLease):
        yield


@contextmanager
def any_primary_led() -> Iterator[None]:
    """A leader commits to what says that it is the primary."""
    connected = WiredChainStore.connected

    def forget(self: WiredChainStore) -> MemoryChainStore:
        self._timeline = 0
        return connected(self)

    with (
        patch.object(Hosts, "find_newest", Hosts.find),
        patch.object(WiredChainStore, "connected", forget),
    ):
        yield
