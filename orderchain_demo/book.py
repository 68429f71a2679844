"""Order books: resting orders of a symbol, by price and then by time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator


def amount_of(text: str) -> int:
    """Return the whole number above 0 that `text` is; 0 when it is none, or too large."""
    try:
        value = int(text)
    except ValueError:
        return 0
    return value if 0 < value <= AMOUNT_MAX else 0


BUY: Final = "B"
SELL: Final = "S"

AMOUNT_MAX: Final = 10**12
"""The largest price or quantity: far above any real one. Without a bound a hostile number, or the
sum of a few, would not fit into the 64 bits that a stored state has for it."""


class RestingOrder(Struct, array_like=True, gc=False):
    """The rest of an order."""

    order_no: str
    side: str
    price_e4: int
    quantity: int
    """Above 0: an order with nothing left does not rest."""


class Trade(NamedTuple):
    """What a resting order gave to an arriving one."""

    order_no: str
    price_e4: int
    quantity: int


class _Side:
    """Price levels of one side. `ranks` rises, and the best level is at its end.

    A rank is the price of a buy level, and the negated price of a sell level, so that both sides
    share one rule. Levels without orders are removed: memory is bounded by what rests.
    """

    __slots__ = ("levels", "ranks", "sign")

    def __init__(self, sign: int) -> None:
        self.sign = sign
        self.ranks: list[int] = []
        self.levels: dict[int, OrderedDict[str, RestingOrder]] = {}

    def add(self, order: RestingOrder) -> None:
        """Put `order` after all others of its price."""
        rank = self.sign * order.price_e4
        level = self.levels.get(rank)
        if level is None:
            level = self.levels[rank] = OrderedDict()
            insort(self.ranks, rank)
        level[order.order_no] = order

    def remove(self, order: RestingOrder) -> None:
        """Take `order` out, and its level when it was the last one there."""
        rank = self.sign * order.price_e4
        level = self.levels[rank]
        del level[order.order_no]
        if not level:
            del self.levels[rank]
            del self.ranks[bisect_left(self.ranks, rank)]

    def orders(self) -> Iterator[RestingOrder]:
        """Yield all orders, the one that trades first before the others."""
        for rank in reversed(self.ranks):
            yield from self.levels[rank].values()


class Book:
    """Resting orders of one symbol. Deterministic: the same calls give the same book.

    Order numbers name orders within the book; a finished number may be reused, since
    remembering it forever would need memory without bound.
    """

    __slots__ = ("_asks", "_bids", "_orders")

    def __init__(self) -> None:
        self._orders: dict[str, RestingOrder] = {}
        self._bids = _Side(1)
        self._asks = _Side(-1)

    def __len__(self) -> int:
        """Return the number of resting orders."""
        return len(self._orders)

    def __contains__(self, order_no: str) -> bool:
        """Return whether an order of this number rests."""
        return order_no in self._orders

    def add(self, order: RestingOrder) -> None:
        """Add `order` after all others of its price. Its number must be free."""
        self._orders[order.order_no] = order
        (self._bids if order.side == BUY else self._asks).add(order)

    def remove(self, order_no: str) -> bool:
        """Take an order out; return whether it rested."""
        order = self._orders.pop(order_no, None)
        if order is None:
            return False
        (self._bids if order.side == BUY else self._asks).remove(order)
        return True

    def take(self, side: str, price_e4: int, quantity: int) -> list[Trade]:
        """Trade up to `quantity` for an arriving order of `side`, at `price_e4` or better.

        The best price trades first; within a price, the oldest order. Each fill is at the price of
        the order that rested.
        """
        against = self._asks if side == BUY else self._bids
        # The lowest rank that still trades: a sell level ranks by its negated price.
        limit = against.sign * price_e4
        ranks, levels = against.ranks, against.levels
        fills: list[Trade] = []
        while quantity and ranks and ranks[-1] >= limit:
            level = levels[ranks[-1]]
            oldest = next(iter(level.values()))
            given = min(quantity, oldest.quantity)
            quantity -= given
            fills.append(Trade(oldest.order_no, oldest.price_e4, given))
            oldest.quantity -= given
            if not oldest.quantity:
                self.remove(oldest.order_no)
        return fills

    def orders(self) -> list[RestingOrder]:
        """Return all resting orders: buys, then sells, each by priority.

        Adding them in this order to an empty book restores this book.
        """
        return [*self._bids.orders(), *self._asks.orders()]


BookImage = tuple[str, list[RestingOrder]]
"""A symbol and its resting orders by priority."""


class Books(dict[str, Book]):
    """The books that hold orders. A book without orders is dropped, and recreated when needed."""

    def __missing__(self, symbol: str) -> Book:
        """Open an empty book."""
        book = self[symbol] = Book()
        return book

    def drop_if_empty(self, symbol: str) -> None:
        """Forget the book of `symbol` when nothing rests in it."""
        if not self[symbol]:
            del self[symbol]

    def resting_orders(self) -> int:
        """Return the number of resting orders in all books."""
        return sum(map(len, self.values()))

    def images(self) -> list[BookImage]:
        """Return all books in a form that depends only on what rests in them."""
        return [(symbol, self[symbol].orders()) for symbol in sorted(self) if self[symbol]]

    @classmethod
    def from_images(cls, images: list[BookImage]) -> Books:
        """Return the books that `images` was taken from."""
        books = cls()
        for symbol, orders in images:
            for order in orders:
                books[symbol].add(order)
        return books
