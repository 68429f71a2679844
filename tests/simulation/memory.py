"""G18: what the programs of a world keep in memory stays within its bounds, whatever is away."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING
from unittest.mock import patch

from tests.judge.rules import Diverged

from .receiver_host import GAPS_KEPT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matcher_receiver import Receiver
    from sequencer import Sequencer

    from .plan import Plan
    from .world import World

LOOK_SECONDS = 0.2

ENTRY_BYTES_MAX = 200
"""One call may have more: it is admitted to an empty queue however large it is."""


class MemoryWatch:
    """Looks into the programs ever so often."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def live(self) -> None:
        """Look until something is found: the judge keeps it, and the world fails by it."""
        with suppress(Diverged):
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                self._look()

    def _look(self) -> None:
        for leader in self._world.leaders:
            if not leader.process.is_dead:
                self._look_at_leader(leader.sequencer)
        for host in self._world.receivers:
            if host.receiver is not None and not host.process.is_dead:
                self._look_at_receiver(host.receiver)

    def _look_at_leader(self, sequencer: Sequencer) -> None:
        plan, stats = self._world.plan, sequencer.stats()
        batch_bytes = plan.batch_rows_max * ENTRY_BYTES_MAX
        self._require(
            stats.queue_bytes <= plan.queue_bytes_max + ENTRY_BYTES_MAX + batch_bytes,
            f"{stats.queue_bytes} bytes wait for a commit",
        )
        self._require(
            # What was on its way to the database when it was full, comes on top.
            stats.publish_queue_bytes <= plan.publish_queue_bytes_max + 2 * batch_bytes,
            f"{stats.publish_queue_bytes} bytes wait for the broker",
        )

    def _look_at_receiver(self, receiver: Receiver) -> None:
        plan, core, receive_loop = self._world.plan, receiver._core, receiver._receive_loop
        self._require(len(receiver.gaps) <= GAPS_KEPT, "gaps", len(receiver.gaps))
        if core is None or receive_loop is None:
            return
        kept = sum(len(record) for _, record in core._kept)
        self._require(
            kept <= plan.core_bounds * 100 or len(core._kept) == 1,
            f"{kept} bytes are kept to be compared",
        )
        self._require(len(core._frame_keys) <= plan.core_bounds, "terms", len(core._frame_keys))
        sights = len(receive_loop.watch.lag._sights)
        self._require(sights <= plan.core_bounds, "sights of the head", sights)

    def _require(self, holds: bool, *shown: object) -> None:
        self._world.judge.require(holds, "G18 memory", *shown)


@contextmanager
def small_bounds(plan: Plan) -> Iterator[None]:
    """Set bounds that are constants so low that worlds of a hundred orders reach them."""
    bounds = {
        "sequencer.keys.memory.PIECE_ROWS": plan.key_piece_rows,
        "sequencer.keys.keeper.PIECE_ROWS": plan.key_piece_rows,
        "matcher_receiver.core.NONCES_MAX": plan.core_bounds,
        "matcher_receiver.core.UNPROVEN_BYTES_MAX": plan.core_bounds * 100,
        "matcher_receiver.reading.SIGHTS_MAX": plan.core_bounds,
    }
    with ExitStack() as stack:
        for name, bound in bounds.items():
            stack.enter_context(patch(name, bound))
        yield
