"""Matches an order flow (new orders and cancels) by price-time priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from chainctl.demo.book_keeper import BookKeeper, KeeperState, OrderRow, order_of
from chainctl.demo.digest import chained

if TYPE_CHECKING:
    from chainctl.demo.book import Fill

NEW: Final = "new"
CANCEL: Final = "cancel"

FLOW_COLUMNS: Final = frozenset(OrderRow.__struct_fields__)


class FlowState(KeeperState, array_like=True, kw_only=True):
    """What matching knows besides the books."""

    trades_digest: bytes = bytes(32)
    cancels: int = 0
    cancels_unknown: int = 0
    """Cancels of orders that never were, or are finished."""


class Matching(BookKeeper[OrderRow, FlowState]):
    """Books by symbol, fed with an order flow. Deterministic."""

    name: ClassVar[str] = "matching by price-time priority"

    def __init__(self) -> None:
        super().__init__(OrderRow, FlowState)

    def _act(self, row: OrderRow) -> bool:
        if row.action == NEW:
            return self._place(row)
        if row.action == CANCEL:
            if self._remove(row):
                self._state.cancels += 1
            else:
                self._state.cancels_unknown += 1
            return True
        return False

    def _place(self, row: OrderRow) -> bool:
        """Trade what can be traded of a new order, and let the rest of it rest."""
        order = order_of(row)
        if order is None:
            return False
        book = self._books[row.symbol]
        if row.order_no in book:
            return False
        for fill in book.take(order.side, order.price_e4, order.quantity):
            order.quantity -= fill.quantity
            self._record(row, fill)
        if order.quantity:
            book.add(order)
        else:
            self._books.drop_if_empty(row.symbol)
        return True

    def _record(self, row: OrderRow, fill: Fill) -> None:
        """Take a trade into the account of trades."""
        state = self._state
        state.trades += 1
        state.quantity_traded += fill.quantity
        trade = self._encode((row.symbol, row.order_no, *fill))
        state.trades_digest = chained(state.trades_digest, trade)
