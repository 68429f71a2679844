"""Wrongs done to receivers, and to what they read."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec

from chain_kernel.model import Mark
from chain_kernel.testing.memory_receiver import MemoryCheckpointStore
from gapfill import GapReader, PreferredSources
from matcher_receiver import Receiver, cancellable_wait
from matcher_receiver.core import ReceiveCore
from matcher_receiver.decisions import Fill
from matcher_receiver.reading import HeadWatch, OpenFill
from matcher_receiver.stats import GapLedger
from sequencer.publisher import Publisher
from tests.doubles.hosts import Hosts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator

    from chain_kernel.frame import FrameHeader
    from chain_kernel.model import Cause, ChainPosition, Run
    from matcher_receiver.decisions import FrameDecision, PositionDecision


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
def fill_with_a_hole() -> Iterator[None]:
    """A reader leaves out the first row of a page."""
    runs = GapReader.runs

    async def leap(self: GapReader, *given: Any, **settings: Any) -> AsyncGenerator[Run, None]:
        async with aclosing(runs(self, *given, **settings)) as found:
            async for run in found:
                yield msgspec.structs.replace(run, events=run.events[-1:])

    with patch.object(GapReader, "runs", leap):
        yield


@contextmanager
def senders_believed() -> Iterator[None]:
    """Whatever copies a leader's nonce is taken for its frame."""
    with patch("matcher_receiver.core.is_signed", lambda record, key: True):
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
    with patch.object(MemoryCheckpointStore, "_check", lambda self, first_pid, end: None):
        yield


@contextmanager
def standby_believed() -> Iterator[None]:
    """What a standby says of our place counts as the primary's word."""
    judge = ReceiveCore.judge_standing

    def believe(self: ReceiveCore, standing: ChainPosition, cause: Cause) -> PositionDecision:
        return judge(self, msgspec.structs.replace(standing, is_primary=True), cause)

    with patch.object(ReceiveCore, "judge_standing", believe):
        yield


@contextmanager
def ledger_without_bound() -> Iterator[None]:
    with patch(
        "matcher_receiver.receiver.GapLedger", lambda _, *others: GapLedger(1_000_000, *others)
    ):
        yield


@contextmanager
def primary_never_asked() -> Iterator[None]:
    """Rows that the first server of a list lacks are waited for, however long."""
    readers, original = PreferredSources._readers, PreferredSources.runs

    async def ask_the_first(
        self: PreferredSources, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        # What only the primary may say stays its own: to lose that, too, would be a second wrong.
        if from_primary:
            fill = original(self, after, until_id, from_primary=True)
            async for run in fill:
                yield run
            return
        for source in readers(self)[:1]:
            async for run in self._runs_of(source, after, until_id):
                yield run

    with patch.object(PreferredSources, "runs", ask_the_first):
        yield


@contextmanager
def cancelled_wait_ends_its_work() -> Iterator[None]:
    """A caller that gives up waiting breaks off what is being read, wherever that has come to."""

    async def outcome(
        self: cancellable_wait.CancellableWait, work: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        if self.is_stopping:
            raise cancellable_wait.StopAsked
        return await asyncio.create_task(work())

    with patch.object(cancellable_wait.CancellableWait, "outcome", outcome):
        yield


@contextmanager
def head_moved_before_a_wait() -> Iterator[None]:
    """The same, and the source is released after the head has moved, not before."""
    take = OpenFill._take

    async def take_and_wait(self: OpenFill, run: Run | None) -> Run | None:
        taken = await take(self, run)
        await asyncio.sleep(0)
        return taken

    with cancelled_wait_ends_its_work(), patch.object(OpenFill, "_take", take_and_wait):
        yield


@contextmanager
def frame_believed_about_its_seal() -> Iterator[None]:
    """A run ends with the seal that a frame has shown, and that is what is stored."""
    with patch.object(ReceiveCore, "_proven_at", lambda self, row_id: self.head):
        yield


@contextmanager
def rows_of_any_primary() -> Iterator[None]:
    """Rows are read from what says that it is the primary."""
    with patch.object(Hosts, "newest", property(Hosts.find)):
        yield
