"""Shows a judge what passes the ports of a world, as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import astuple

from chain_kernel.testing.memory_log import MemoryLog
from chain_kernel.testing.memory_store import CommittedChain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chain_kernel.model import Event, FrameTerm, IntakeMark, Run
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
