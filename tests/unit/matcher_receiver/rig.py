"""A receiver over ports in memory, in virtual time."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from chain_kernel.model import Run
from chain_kernel.ports import GapSource, SnapshotStore
from chain_kernel.testing.virtual_loop import virtual_clock
from matcher_receiver import Receiver, ReceiverConfig, State
from tests.builders.chains import make_chain
from tests.tuned import tuned

from .memory import MemoryCheckpoints, MemoryFrames, MemoryRecords, MemorySource


class Rig:
    """A chain, its ports, and receivers over them."""

    def __init__(self, sizes: list[int]) -> None:
        self.chain = make_chain(sizes)
        self.frames = MemoryFrames()
        self.source = MemorySource(self.chain)
        self.checkpoints = MemoryCheckpoints(self.chain.chain_id)
        self.has_checkpoints = True
        self.states: list[State] = []
        self.on_state: Callable[[State], None] = self.states.append
        self.snapshots: SnapshotStore | None = None

    def receiver(self, source: GapSource | None = None, **settings: Any) -> Receiver:
        return Receiver(
            tuned(ReceiverConfig(chain_id=self.chain.chain_id), **settings),
            self.frames,
            source or self.source,
            self.checkpoints if self.has_checkpoints else None,
            virtual_clock(),
            snapshots=self.snapshots,
            on_state=self.on_state,
            random=Random(5),
        )

    @asynccontextmanager
    async def live(
        self, source: GapSource | None = None, **settings: Any
    ) -> AsyncIterator[Receiver]:
        """A receiver that has been handed all there is."""
        async with self.receiver(source, **settings) as receiver:
            await take(receiver, self.chain.mark().id)
            yield receiver

    def commit_and_publish(self, rows: int, slice_rows: int = 1_000) -> None:
        self.frames.put(*self.chain.frames(self.chain.add(rows), slice_rows))


def with_records(sizes: list[int]) -> tuple[Rig, MemoryRecords]:
    """Make a rig whose checkpoints also keep what is reported of a receiver."""
    rig = Rig(sizes)
    rig.checkpoints = records = MemoryRecords(rig.chain.chain_id, rig.chain.database_id)
    return rig, records


async def take(receiver: Receiver, until_id: int) -> list[Run]:
    runs: list[Run] = []
    while not runs or runs[-1].last_id < until_id:
        runs.append(await anext(receiver))
    return runs
