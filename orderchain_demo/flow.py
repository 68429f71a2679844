"""A generated order flow: limit orders and cancels of several symbols.

Each mid price walks at random and is drawn back to where it began; orders are placed around it,
most of them near, some across it; cancels name orders placed before, some of which have long
traded. The same seed gives the same bytes on every supported Python: only `Random.random()` is
used, the one method whose sequence Python promises to keep, and no arithmetic beyond that of
integers and single products.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from orderchain_demo.book import BUY, CANCEL, NEW, SELL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIVE_ORDERS_MAX: Final = 20_000
"""Orders that were not cancelled yet. At this number, one of them is cancelled next: so the books,
and the memory of a process that keeps them, do not grow with the length of the flow."""

OPENING_MS: Final = 1_767_342_600_000
"""The time at which the flow begins: 2026-01-02 08:30 UTC. Fixed, since the seed alone decides."""

_TICK_E4: Final = 100
_LOT: Final = 100
_CANCEL_SHARE: Final = 0.42
_CROSSING_SHARE: Final = 0.1
_CROSSING_TICKS: Final = 3
_DEPTH_TICKS: Final = 100
_LOTS_MAX: Final = 50
_PULL: Final = 0.005
"""The pull of the opening price: how much likelier a step towards it is, per tick of distance."""
_IDLE_MS_MAX: Final = 8
_OPENING_TICKS: Final = {
    "ALPHA": 1_850, "BRAVO": 4_210, "CEDAR": 975, "DELTA": 12_640, "EMBER": 2_330,
}  # fmt: skip


class FlowOrder(NamedTuple):
    """One row of the flow; its fields are the columns."""

    ts_ms: int
    symbol: str
    action: str
    order_no: int
    side: str
    price_e4: int
    qty: int


def order_flow(seed: int, orders: int) -> Iterator[FlowOrder]:
    """Yield `orders` rows: new orders and cancels, as they would reach an exchange."""
    draw = Random(seed).random  # noqa: S311 - a flow that can be repeated, no secret
    symbols = list(_OPENING_TICKS)
    mids = dict(_OPENING_TICKS)
    live: list[FlowOrder] = []
    ts_ms = OPENING_MS
    for order_no in range(1, orders + 1):
        ts_ms += int(draw() * _IDLE_MS_MAX)
        if live and (len(live) >= LIVE_ORDERS_MAX or draw() < _CANCEL_SHARE):
            yield _cancel(live, ts_ms, draw)
            continue
        symbol = symbols[int(draw() * len(symbols))]
        mids[symbol] += _step(_OPENING_TICKS[symbol] - mids[symbol], draw())
        order = _new(symbol, mids[symbol], ts_ms, order_no, draw)
        live.append(order)
        yield order


def csv_lines(seed: int, orders: int) -> Iterator[str]:
    """Yield the flow as the lines of a CSV file with a header."""
    yield ",".join(FlowOrder._fields) + "\n"
    for order in order_flow(seed, orders):
        yield ",".join(map(str, order)) + "\n"


def _step(distance: int, draw: float) -> int:
    """Return a tick up or down, or 0: likelier towards the opening price than away from it."""
    drift = distance * _PULL
    return int(draw < 0.2 + drift) - int(draw > 0.8 + drift)


def _new(symbol: str, mid: int, ts_ms: int, order_no: int, draw: Callable[[], float]) -> FlowOrder:
    """Return a limit order near the mid price; small ones are the commonest."""
    side, away = (BUY, -1) if draw() < 0.5 else (SELL, 1)
    depth, size = draw(), draw()
    if draw() < _CROSSING_SHARE:
        ticks = -away * (1 + int(_CROSSING_TICKS * depth))
    else:
        ticks = away * (1 + int(_DEPTH_TICKS * depth * depth))
    return FlowOrder(
        ts_ms=ts_ms,
        symbol=symbol,
        action=NEW,
        order_no=order_no,
        side=side,
        price_e4=max(mid + ticks, 1) * _TICK_E4,
        qty=(1 + int(_LOTS_MAX * size * size * size)) * _LOT,
    )


def _cancel(live: list[FlowOrder], ts_ms: int, draw: Callable[[], float]) -> FlowOrder:
    """Take an order off the live ones, rather a late one, which may not have traded."""
    share = draw()
    index = int((len(live) - 1) * (1 - share * share))
    live[index], live[-1] = live[-1], live[index]
    return live.pop()._replace(ts_ms=ts_ms, action=CANCEL)
