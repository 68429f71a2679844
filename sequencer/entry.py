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
    collector: with an entry an order its passes are what costs most.
    """

    orders: Sequence[Order]
    size_bytes: int
    """What it takes of a queue."""
    done: asyncio.Future[Any]
    """Gets the places of `orders`, and in the place of one that was refused its OrderError; for an
    order submitted alone, its place alone."""
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
        if self.done.done():
            return
        if self.is_alone:
            self.done.set_result(outcomes[0])
        elif self.sifted is None:
            self.done.set_result(outcomes)
        else:
            self.done.set_result(self.sifted.together(outcomes))

    def fail(self, error: BaseException) -> None:
        """Tell the caller that nothing became of `orders` but `error`, unless it has an answer."""
        if not self.done.done():
            self.done.set_exception(error)
