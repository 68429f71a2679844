"""A receiver over ports in memory, in virtual time."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from matcher_receiver import Receiver, ReceiverConfig, State
from tests.builders.chains import make_chain
from tests.tuned import tuned

from .memory import MemoryCheckpoints, MemoryFrames, MemorySource
from .virtual_time import run_virtual, virtual_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chain_kernel.model import Run
    from chain_kernel.ports import GapSource, SnapshotStore


class Rig:
    """A chain, its ports, and receivers over them."""

    def __init__(self, sizes: list[int]) -> None:
        self.chain = make_chain(sizes)
        self.frames = MemoryFrames()
        self.source = MemorySource(self.chain)
        self.checkpoints = MemoryCheckpoints(self.chain.chain_id)
        self.has_checkpoints = True
        self.states: list[State] = []
        self.snapshots: SnapshotStore | None = None

    def receiver(self, source: GapSource | None = None, **settings: Any) -> Receiver:
        return Receiver(
            tuned(ReceiverConfig(chain_id=self.chain.chain_id), **settings),
            self.frames,
            source or self.source,
            self.checkpoints if self.has_checkpoints else None,
            virtual_clock(),
            snapshots=self.snapshots,
            on_state=self.states.append,
            random=Random(5),
        )

    def commit_and_publish(self, rows: int, slice_rows: int = 1_000) -> None:
        self.frames.put(*self.chain.frames(self.chain.add(rows), slice_rows))


async def take(receiver: Receiver, until_id: int) -> list[Run]:
    runs: list[Run] = []
    while not runs or runs[-1].last_id < until_id:
        runs.append(await anext(receiver))
    return runs


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[[], None]:
    """Run an async test in virtual time."""

    def run() -> None:
        run_virtual(test())  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
