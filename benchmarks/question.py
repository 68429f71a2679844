"""A question, and the arms whose comparison answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from benchmarks.chains import Site
from benchmarks.load import Load

Figures = dict[str, Any]

RUN_SECONDS = 3.0
"""What a run costs besides its orders: two processes, a chain, a topic, a proof."""

ORDERS = {1: 2_000, 10: 20_000, 100: 100_000, 500: 100_000, 1_000: 200_000, 5_000: 400_000}
"""Timed orders of a run by its batch size: one to four seconds each, for the fast ones."""

QUICK_SHARE = 4
"""A quick run sends one order in this many."""

_EXPECTED_RATES = {
    "common_way": 4_000, "event_sourcing": 20_000, "nats_jetstream": 3_000,
}  # fmt: skip
_EXPECTED_RATES_BY_ROWS = {1: 700, 10: 6_000, 100: 30_000, 500: 60_000, 1_000: 90_000}
_EXPECTED_RATE = 110_000


class Scope(Struct, frozen=True, kw_only=True):
    """How much of a question is asked."""

    is_quick: bool = False
    is_huge: bool = False
    """Chains of 10^8 rows too: an hour, and 30 GB of disk."""
    repeats: int = 5

    def orders(self, batch_rows: int) -> int:
        """Return the orders of a run in whole batches."""
        orders = ORDERS[batch_rows]
        return max(batch_rows * 4, orders // QUICK_SHARE) if self.is_quick else orders


class Arm(Struct, frozen=True, kw_only=True):
    """One of the things compared, each repeat of which is saved by itself."""

    name: str
    load: Load | None = None
    settings: dict[str, float | int | str] = {}
    """For questions that do more than run a load."""
    seconds: float
    """About how long one repeat takes."""
    repeats_max: int = 1_000


class Line(Struct, frozen=True, kw_only=True):
    """One repeat of an arm, as it is saved."""

    question: str
    arm: str
    repeat: int
    run: str
    """The start of the run that it belongs to; its conditions are in `conditions.jsonl`."""
    engine: str
    """Fingerprint of the engine's code."""
    settings: dict[str, Any] = {}
    figures: Figures | None = None
    """None where the run failed, or did not verify: then there is no figure."""
    failure: str | None = None
    skipped: str | None = None
    """Why the arm cannot run here."""
    seconds: float = 0.0


class Question(Struct, frozen=True):
    """What is asked: the arms that are compared, and how one repeat of an arm is run."""

    title: str
    arms: Callable[[Scope], list[Arm]]
    """The first arm may be what others need to know."""
    run: Callable[[Site, Arm, Sequence[Line]], Awaitable[Figures]]
    """The lines are those of this question so far."""


def load_arm(
    scope: Scope,
    rival: str,
    batch_rows: int,
    *,
    name: str | None = None,
    **settings: Any,  # noqa: ANN401 - fields of Load
) -> Arm:
    """Return the arm of a load through a rival, with the number of orders that suits it."""
    rate = _EXPECTED_RATES.get(rival) or _EXPECTED_RATES_BY_ROWS.get(batch_rows, _EXPECTED_RATE)
    orders = settings.pop("orders", None) or scope.orders(batch_rows)
    if rival in _EXPECTED_RATES:  # a slow one needs no more than a few seconds either
        orders = min(orders, max(2 * batch_rows, 4 * rate // (2 if scope.is_quick else 1)))
    orders = max(1, orders // batch_rows) * batch_rows
    load = Load(rival=rival, orders=orders, batch_rows=batch_rows, **settings)
    return Arm(
        name=name or f"{rival} {batch_rows}",
        load=load,
        seconds=RUN_SECONDS + 1.3 * load.all_orders / rate,
    )
