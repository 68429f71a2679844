"""Rebuilds the books of a venue from its feed: orders added, orders deleted, trades as facts."""

from __future__ import annotations

from typing import ClassVar, Final

from chainctl.demo.amount import amount_of
from chainctl.demo.book_keeper import BookKeeper, KeeperState, OrderRow, order_of

ADD: Final = "A"
DELETE: Final = "D"
TRADE: Final = "T"


class FeedRow(OrderRow, gc=False):
    """One fact of the venue."""

    contra_order_no: str = ""
    """Of a trade: the order on the other side. The venue has matched already."""


FEED_COLUMNS: Final = frozenset(FeedRow.__struct_fields__)


class FeedState(KeeperState, array_like=True, kw_only=True):
    """What is known of the venue besides the books."""

    adds: int = 0
    deletes: int = 0
    deletes_unknown: int = 0
    """Deletes of orders that do not rest."""
    trades_not_resting: int = 0
    """Trades neither of whose orders rests."""
    trades_overfilling: int = 0
    """Trades of more than was left of an order. It is removed."""


class Venue(BookKeeper[FeedRow, FeedState]):
    """Books by symbol, rebuilt from a venue's feed. Nothing is matched. Deterministic.

    An order that trades on arrival shows as a trade first, and is added with what is left of it;
    so commonly one order of a trade rests and the other does not.
    """

    name: ClassVar[str] = "rebuilding a venue's books"

    def __init__(self) -> None:
        super().__init__(FeedRow, FeedState)

    def _act(self, row: FeedRow) -> bool:
        if row.action == ADD:
            return self._add(row)
        if row.action == TRADE:
            return self._trade(row)
        if row.action == DELETE:
            if self._remove(row):
                self._state.deletes += 1
            else:
                self._state.deletes_unknown += 1
            return True
        return False

    def _add(self, row: FeedRow) -> bool:
        """Let an order rest as the venue says, even where it could trade."""
        order = order_of(row)
        if order is None:
            return False
        book = self._books[row.symbol]
        if row.order_no in book:
            return False
        book.add(order)
        self._state.adds += 1
        return True

    def _trade(self, row: FeedRow) -> bool:
        """Take the traded quantity from whichever of the two named orders rests."""
        quantity = amount_of(row.qty)
        if not quantity:
            return False
        state, book = self._state, self._books[row.symbol]
        state.trades += 1
        state.quantity_traded += quantity
        lacking = [
            book.reduce(order_no, quantity)
            for order_no in (row.order_no, row.contra_order_no)
            if order_no in book
        ]
        state.trades_not_resting += not lacking
        state.trades_overfilling += any(lacking)
        self._books.drop_if_empty(row.symbol)
        return True
