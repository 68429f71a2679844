"""Small wrongs done to the engine, each of which the simulation must find.

What stands in SQL (the fence, the compare-and-set of a checkpoint) is done to the database in
memory; the tests of the contract hold that to what PostgreSQL does.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from matcher_receiver import Receiver
from matcher_receiver.core import ReceiveCore
from matcher_receiver.decisions import Fill
from matcher_receiver.watch import HeadWatch
from orderchain.errors import ConnectError, RetryError
from orderchain.mark import Mark
from orderchain.simulation.memory_checkpoints import MemoryCheckpointStore
from orderchain.simulation.memory_store import MemoryChain
from sequencer.committer import Committer
from sequencer.key_keeper import KeyKeeper
from sequencer.key_memory import KeyMemory
from sequencer.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from matcher_receiver.decisions import FrameDecision
    from orderchain.batch import Batch, Term
    from orderchain.errors import UnknownOutcome
    from orderchain.frame import FrameHeader
    from orderchain.run import Run


@contextmanager
def no_fence() -> Iterator[None]:
    with patch.object(MemoryChain, "admits", lambda self, batch: True):
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
def acknowledged_before_commit() -> Iterator[None]:
    commit = Committer.commit

    async def answer_first(self: Committer, assembly: Any, meanwhile: Any = None) -> None:
        assembly.answer()
        await commit(self, assembly, meanwhile)

    with patch.object(Committer, "commit", answer_first):
        yield


@contextmanager
def published_before_commit() -> Iterator[None]:
    commit = Committer.commit

    async def publish_first(self: Committer, assembly: Any, meanwhile: Any = None) -> None:
        if assembly.batch is not None and self._publisher is not None:
            self._publisher.offer(assembly.batch)
        await commit(self, assembly, meanwhile)

    with patch.object(Committer, "commit", publish_first):
        yield


@contextmanager
def keys_not_loaded() -> Iterator[None]:
    """A new leader knows no key of the leaders before it."""

    async def load(self: KeyKeeper, term: Term) -> None:
        self._chain_id = term.chain_id
        self._memory = KeyMemory(self._window_rows, term.key_salt, after_id=term.last_id)

    with patch.object(KeyKeeper, "load", load):
        yield


@contextmanager
def gap_skipped() -> Iterator[None]:
    """A frame behind a gap is delivered as if it were the next one."""
    judge = ReceiveCore.judge

    def leap(self: ReceiveCore, header: FrameHeader) -> FrameDecision:
        decision = judge(self, header)
        if not isinstance(decision, Fill) or decision.cause != "frame":
            return decision
        at = header.first_pid
        self.head = Mark(id=at, batch_last_id=at, seal=header.seal_before, epoch=header.epoch)
        return judge(self, header)

    with patch.object(ReceiveCore, "judge", leap):
        yield


@contextmanager
def silence() -> Iterator[None]:
    """No heartbeats, and no polling: nothing shows that the last frame was lost."""

    async def send_nothing(self: Publisher) -> None:
        del self

    async def look_at_nothing(self: HeadWatch) -> None:
        self.note_look()

    with (
        patch.object(Publisher, "_beat", send_nothing),
        patch.object(HeadWatch, "poll", look_at_nothing),
    ):
        yield


@contextmanager
def checkpoint_before_delivery() -> Iterator[None]:
    following = Receiver.__anext__

    async def save_first(self: Receiver) -> Run:
        run = await following(self)
        await self.checkpoint(run)
        return run

    with patch.object(Receiver, "__anext__", save_first):
        yield


@contextmanager
def checkpoint_without_comparing() -> Iterator[None]:
    """Two receivers of one name both go on."""
    with patch.object(MemoryCheckpointStore, "_check", lambda self, first_pid: None):
        yield


@dataclass(frozen=True)
class Mutation:
    """A wrong, and within how many seeds, from 0 on, it must be found.

    About ten times as many as it takes in the mean: what a seed draws changes with the code.
    """

    done: Callable[[], AbstractContextManager[None]]
    seeds: int
    found_by: tuple[str, ...]
    """The invariants one of which must tell."""
    changes: dict[str, object] = field(default_factory=dict)
    """What worlds need to be prone to it."""

    @property
    def name(self) -> str:
        return self.done.__name__


MUTATIONS = (
    Mutation(no_fence, 100, ("S1", "S7")),
    Mutation(blind_retry, 100, ("S4", "S9")),
    Mutation(early_reading_back, 400, ("S4", "S9"), {"commit_loss": 0.5, "database_loss": 0.01}),
    Mutation(acknowledged_before_commit, 10, ("S3",)),
    Mutation(published_before_commit, 20, ("S2",)),
    Mutation(keys_not_loaded, 100, ("S4", "NumberOutOfOrder")),
    Mutation(gap_skipped, 150, ("S5",)),
    Mutation(silence, 50, ("L1",)),
    Mutation(checkpoint_before_delivery, 100, ("S5",)),
    Mutation(checkpoint_without_comparing, 150, ("S5",)),
)
