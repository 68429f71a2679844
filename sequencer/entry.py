"""What one call submitted, on its way to a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from orderchain.batch import IntakeMark
from sequencer.columns import OrderColumns
from sequencer.order import Order
from sequencer.sifting import Sifted


class Entry(Struct, eq=False, gc=False):
    """The orders of one call: never split over two batches. Without any it asks whether we lead.

    They are taken whole or refused whole; or, sifted, each for itself. Not tracked by the garbage
    collector: with an entry an order its passes are what costs most. So it must be part of no
    circle, and lets go of its future and of refused orders with the answer: an error knows the
    frames that it passed, and they know the entry.
    """

    orders: Sequence[Order]
    size_bytes: int
    """What it takes of a queue."""
    done: asyncio.Future[Any] | None
    """Gets the places of `orders`, and in the place of one that was refused its OrderError; for an
    order submitted alone, its place alone. None once there is an answer."""
    intake: IntakeMark | None = None
    is_alone: bool = False
    """Whether the call was for one order, not for a list."""
    columns: OrderColumns | None = None
    """Of `orders`, where they were made already."""
    sifted: Sifted | None = None
    positions: Sequence[int] | None = None
    """Where each order stands in the intake's source: for those that will be refused."""
    queued_at_seconds: float = 0.0
    """By the loop's clock; noted only where a batch waits for others."""

    def answer(self, outcomes: list[Any]) -> None:
        """Tell the caller what became of `orders`, unless it has gone."""
        done, sifted = self._let_go()
        if done is None or done.done():
            return
        if self.is_alone:
            done.set_result(outcomes[0])
        elif sifted is None:
            done.set_result(outcomes)
        else:
            done.set_result(sifted.together(outcomes))

    def fail(self, error: BaseException) -> None:
        """Tell the caller that nothing became of `orders` but `error`, unless it has an answer."""
        done, _ = self._let_go()
        if done is not None and not done.done():
            done.set_exception(error)

    def _let_go(self) -> tuple[asyncio.Future[Any] | None, Sifted | None]:
        """Return what may lead back here, and hold it no longer."""
        held = self.done, self.sifted
        self.done = self.sifted = None
        return held
