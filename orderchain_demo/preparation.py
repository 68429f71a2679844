"""The input of a demo: generated or given, read once from end to end, and applied straight.

A generated flow has limit orders and cancels of several symbols. Each mid price walks at random and
is drawn back to where it began; orders are placed around it, most of them near, some across it;
cancels name orders placed before, some of which have long traded. The same seed gives the same
bytes on every supported Python: only `Random.random()` is used, the one method whose sequence
Python promises to keep, and no arithmetic beyond that of integers and single products.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from orderchain_demo.book import BUY, SELL
from orderchain_demo.matching import CANCEL, NEW, Matching
from sequencer.intake.file import FileOptions, OrderFile

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS: Final = ("ts_ms", "symbol", "action", "order_no", "side", "price_e4", "qty")

LIVE_ORDERS_MAX: Final = 20_000
"""Orders that were not cancelled yet. At this number, one of them is cancelled next: so the books,
and the memory of a process that keeps them, do not grow with the length of the flow."""

OPENING_MS: Final = 1_767_342_600_000
"""When the flow begins: 2026-01-02 08:30 UTC. Fixed, since the seed alone decides."""

_TICK_E4: Final = 100
_LOT: Final = 100
_CANCEL_SHARE: Final = 0.42
_CROSSING_SHARE: Final = 0.1
_CROSSING_TICKS: Final = 3
_DEPTH_TICKS: Final = 100
_LOTS_MAX: Final = 50
_PULL: Final = 0.005
"""How much likelier a step towards the opening price is, per tick of distance from it."""
_IDLE_MS_MAX: Final = 8
_PIECE_ROWS: Final = 5_000


class FlowOrder(NamedTuple):
    """One row of the flow, in the order of `COLUMNS`."""

    ts_ms: int
    symbol: str
    action: str
    order_no: int
    side: str
    price_e4: int
    qty: int


class _Instrument:
    """A symbol and its mid price in ticks."""

    __slots__ = ("mid", "opening", "symbol")

    def __init__(self, symbol: str, opening: int) -> None:
        self.symbol = symbol
        self.opening = opening
        self.mid = opening

    def step(self, draw: float) -> None:
        """Move by a tick or stay, likelier towards the opening price than away from it."""
        drift = (self.opening - self.mid) * _PULL
        if draw < 0.2 + drift:
            self.mid += 1
        elif draw > 0.8 + drift:
            self.mid -= 1


def order_flow(seed: int, orders: int) -> Iterator[FlowOrder]:
    """Yield `orders` rows: new orders and cancels, as they would reach an exchange."""
    draw = Random(seed).random  # noqa: S311 - a flow that can be repeated, no secret
    instruments = [
        _Instrument("ALPHA", 1_850),
        _Instrument("BRAVO", 4_210),
        _Instrument("CEDAR", 975),
        _Instrument("DELTA", 12_640),
        _Instrument("EMBER", 2_330),
    ]
    live: list[FlowOrder] = []
    ts_ms = OPENING_MS
    for order_no in range(1, orders + 1):
        ts_ms += int(draw() * _IDLE_MS_MAX)
        if live and (len(live) >= LIVE_ORDERS_MAX or draw() < _CANCEL_SHARE):
            yield _cancel(live, _cancelled(live, draw), ts_ms)
            continue
        instrument = instruments[int(draw() * len(instruments))]
        instrument.step(draw())
        order = _new(instrument, ts_ms, order_no, draw)
        live.append(order)
        yield order


def _new(
    instrument: _Instrument, ts_ms: int, order_no: int, draw: Callable[[], float]
) -> FlowOrder:
    """Return a limit order near the mid price of `instrument`; small ones are the commonest."""
    side, away = (BUY, -1) if draw() < 0.5 else (SELL, 1)
    depth, size = draw(), draw()
    if draw() < _CROSSING_SHARE:
        ticks = -away * (1 + int(_CROSSING_TICKS * depth))
    else:
        ticks = away * (1 + int(_DEPTH_TICKS * depth * depth))
    return FlowOrder(
        ts_ms=ts_ms,
        symbol=instrument.symbol,
        action=NEW,
        order_no=order_no,
        side=side,
        price_e4=max(instrument.mid + ticks, 1) * _TICK_E4,
        qty=(1 + int(_LOTS_MAX * size * size * size)) * _LOT,
    )


def _cancelled(live: list[FlowOrder], draw: Callable[[], float]) -> int:
    """Return the index of the order to cancel: rather a late one, which may not have traded."""
    share = draw()
    return int((len(live) - 1) * (1 - share * share))


def _cancel(live: list[FlowOrder], index: int, ts_ms: int) -> FlowOrder:
    """Take an order off the live ones, and return its cancel."""
    order = live[index]
    live[index] = live[-1]
    live.pop()
    return order._replace(ts_ms=ts_ms, action=CANCEL)


def write_order_flow(file: IO[str], seed: int, orders: int, on_rows: Callable[[int], None]) -> None:
    """Write the flow as CSV with a header, in pieces: memory does not grow with `orders`.

    After each piece, `on_rows` gets the number of rows written; what it raises ends the work.
    """
    file.write(",".join(COLUMNS) + "\n")
    flow = order_flow(seed, orders)
    written = 0
    while piece := list(islice(flow, _PIECE_ROWS)):
        file.writelines(",".join(map(str, order)) + "\n" for order in piece)
        written += len(piece)
        on_rows(written)


PORTION_ROWS: Final = 5_000
"""Rows read at once. It bounds the memory, and the reaction time to Ctrl-C."""


class ExpectedState(Struct, frozen=True, kw_only=True):
    """An input as read, and what matching made of it."""

    rows: int
    last_key: str
    counters: dict[str, int]
    digest: str


def expected_state(path: Path, on_rows: Callable[[int], None]) -> ExpectedState:
    """Apply the rows of `path`, without database, broker or receiver in between.

    After each portion, `on_rows` gets the number of rows done; what it raises ends the work.
    Raises InputError, which names the line, for a file that cannot be read to its end.
    """
    matching = Matching()
    rows, last_key = 0, ""
    with OrderFile(path, FileOptions()) as intake:
        while (portion := intake.read(PORTION_ROWS)) is not None:
            matching.apply(order.payload for order in portion.orders)
            rows, last_key = portion.mark.position, portion.orders[-1].key
            on_rows(rows)
    return ExpectedState(
        rows=rows, last_key=last_key, counters=matching.counters(), digest=matching.digest()
    )


FLOW_NAME: Final = "orders.csv"


class DemoInput(Struct, frozen=True, kw_only=True):
    """An input that can be read to its end."""

    path: Path
    expected: ExpectedState
    """What its orders come to when they are applied straight."""


Show = Callable[[float, str], None]
"""Gets the rows generated and read so far, and which of the two is under way."""


def read_input(path: Path, show: Show) -> DemoInput:
    """Read a file to its end. Raises InputError, which names the line, where that cannot be."""
    path = path.absolute()
    expected = expected_state(path, lambda rows: show(rows, "applied straight"))
    return DemoInput(path=path, expected=expected)


def generated_input(folder: Path, seed: int, orders: int, show: Show) -> DemoInput:
    """Write a flow into `folder`, and read it."""
    path = folder / FLOW_NAME
    with path.open("w", encoding="utf-8", newline="") as file:
        write_order_flow(file, seed, orders, lambda rows: show(rows, "generated"))
    return read_input(path, lambda rows, note: show(orders + rows, note))
