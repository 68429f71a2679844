"""Shows a judge what passes the ports of a world, as plain values."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from msgspec.structs import astuple

from chain_kernel.testing.memory_log import MemoryLog
from chain_kernel.testing.memory_receiver import MemoryCheckpointStore
from chain_kernel.testing.memory_store import CommittedChain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from typing import Any

    from chain_kernel.model import ChainPosition, Event, FrameTerm, IntakeMark, Mark, Run
    from chain_kernel.ports import GapSource
    from chain_kernel.seal import Batch
    from tests.judge.chain_bytes import Row
    from tests.judge.judge import Judge


def rows_of(events: Sequence[Event]) -> list[Row]:
    """Return what a model knows of orders."""
    return [astuple(event) for event in events]


def end_of(run: Run) -> tuple[int, int, bytes]:
    """Return the place behind a run: its last id, that of the last whole batch, its seal."""
    return run.end.id, run.end.batch_last_id, run.end.seal


class SeenChain(CommittedChain):
    """A chain whose every commit is seen, as the database does it; without a judge nobody looks."""

    judge: Judge | None
    watch_intake: Callable[[CommittedChain], None]
    watch_term: Callable[[], None]

    def begin_term(self, nonce: bytes, owner: str = "") -> FrameTerm:
        term = super().begin_term(nonce, owner)
        if self.judge is not None:
            self.judge.saw("term", self.epoch, self.last_id)
        self.watch_term()
        return term

    def store(self, batch: Batch, published_id: int, intake: Sequence[IntakeMark]) -> None:
        if self.judge is not None:
            rows = rows_of(batch.events)
            self.judge.saw("batch", batch.epoch, batch.committed_at_us, batch.seal, rows)
        super().store(batch, published_id, intake)

    def move_intake(self, intake: Sequence[IntakeMark]) -> None:
        """The last part of a `store`, too, whether it brings marks or not."""
        super().move_intake(intake)
        self.watch_intake(self)


class SeenLog(MemoryLog):
    """A log whose every record is seen."""

    def __init__(self, judge: Judge) -> None:
        super().__init__()
        self.judge: Judge | None = judge

    def append(self, frames: Sequence[bytes]) -> None:
        if self.judge is not None:
            for frame in frames:
                self.judge.saw("frame", frame)
        super().append(frames)


class SeenGaps:
    """Passes on what a source answers; each run of a fill is seen, and each look at the head."""

    def __init__(self, source: GapSource, judge: Judge, *, sees_looks: bool) -> None:
        """`sees_looks`: no server answers as the primary that is none any more."""
        self._source = source
        self._judge = judge
        self._sees_looks = sees_looks

    @property
    def chain_id(self) -> int:
        return self._source.chain_id

    async def standing(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        began = asyncio.get_running_loop().time()
        standing = await self._source.standing(at_id, batch_id)
        if self._sees_looks and standing.is_primary:
            self._judge.saw("looked", standing.head.last_id, began)
        return standing

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        runs = self._source.runs(after, until_id, from_primary=from_primary)
        head = after.id
        async with aclosing(runs):
            async for run in runs:
                self._judge.saw("filled", head, until_id, rows_of(run.events), end_of(run))
                head = run.end.id
                yield run

    async def row_at_or_before(self, until_id: int) -> int:
        return await self._source.row_at_or_before(until_id)

    async def row_before_time(self, time_us: int) -> int:
        return await self._source.row_before_time(time_us)

    async def close(self) -> None:
        await self._source.close()


class SeenCheckpoints(MemoryCheckpointStore):
    """A receiver's place, which is seen whenever it is read: after each kill."""

    def __init__(self, judge: Judge, *given: Any, may_lag: bool) -> None:
        """`may_lag`: it is stored after the effects, not with them."""
        super().__init__(*given)
        self._judge = judge
        self._may_lag = may_lag

    async def _stored(self) -> Mark | None:
        mark = await super()._stored()
        self._judge.saw("resumed", self.receiver, 0 if mark is None else mark.id, self._may_lag)
        return mark
