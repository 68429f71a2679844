"""An exchange in memory: limit orders and cancels, matched by price and then by time.

It is a pure fold over payloads: the same ones in the same order give the same state and digest,
however they are cut into calls. Each payload is in the digest, also one that is no order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NEW: Final = "new"
CANCEL: Final = "cancel"
BUY: Final = "B"
SELL: Final = "S"

AMOUNT_MAX: Final = 10**12
"""The largest price or quantity: far above any real one. Without a bound a hostile number, or the
sum of a few, would not fit into the 64 bits that a stored state has for it."""

_encode: Final = msgspec.msgpack.Encoder().encode


class OrderRow(Struct, gc=False):
    """The columns that matching needs; an input may have others.

    A column that a row lacks reads as empty, and then counts as a bad one: the row is refused. One
    bad order must not stop an exchange.
    """

    action: str = ""
    symbol: str = ""
    order_no: str = ""
    side: str = ""
    price_e4: str = ""
    qty: str = ""


class RestingOrder(Struct, array_like=True, gc=False):
    """The quantity of an order that is left to trade, above 0."""

    order_no: str
    side: str
    price_e4: int
    quantity: int


class Trade(NamedTuple):
    """A trade: what a resting order gave to an arriving one."""

    order_no: str
    price_e4: int
    quantity: int


class _BookSide:
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
        rank = self.sign * order.price_e4
        if rank not in self.levels:
            self.levels[rank] = OrderedDict()
            insort(self.ranks, rank)
        self.levels[rank][order.order_no] = order

    def remove(self, order: RestingOrder) -> None:
        rank = self.sign * order.price_e4
        level = self.levels[rank]
        del level[order.order_no]
        if not level:
            del self.levels[rank]
            del self.ranks[bisect_left(self.ranks, rank)]

    def best(self, limit_e4: int) -> RestingOrder | None:
        """Return the order that trades first, if its price is at least as good as the limit."""
        if not self.ranks or self.ranks[-1] < self.sign * limit_e4:
            return None
        return next(iter(self.levels[self.ranks[-1]].values()))

    def __iter__(self) -> Iterator[RestingOrder]:
        """Yield all orders, the one that trades first before the others."""
        for rank in reversed(self.ranks):
            yield from self.levels[rank].values()


class Book:
    """Resting orders of one symbol.

    A number names an order while it rests; remembering finished ones would need memory without
    bound.
    """

    __slots__ = ("_sides", "orders")

    def __init__(self, orders: Iterable[RestingOrder] = ()) -> None:
        """Add `orders` in their turn: those of `by_priority` make the same book again."""
        self.orders: dict[str, RestingOrder] = {}
        self._sides = {BUY: _BookSide(1), SELL: _BookSide(-1)}
        for order in orders:
            self.add(order)

    def add(self, order: RestingOrder) -> None:
        """Add `order` after all others of its price. Its number must be free."""
        self.orders[order.order_no] = order
        self._sides[order.side].add(order)

    def remove(self, order_no: str) -> bool:
        """Take an order out; return whether it rested."""
        order = self.orders.pop(order_no, None)
        if order is None:
            return False
        self._sides[order.side].remove(order)
        return True

    def take(self, side: str, price_e4: int, quantity: int) -> list[Trade]:
        """Trade up to `quantity` for an arriving order of `side`, at `price_e4` or better.

        The best price trades first; within a price, the oldest order. Each trade is at the price of
        the order that rested.
        """
        against = self._sides[SELL if side == BUY else BUY]
        trades: list[Trade] = []
        while quantity and (oldest := against.best(price_e4)) is not None:
            given = min(quantity, oldest.quantity)
            quantity -= given
            trades.append(Trade(oldest.order_no, oldest.price_e4, given))
            oldest.quantity -= given
            if not oldest.quantity:
                self.remove(oldest.order_no)
        return trades

    def by_priority(self) -> list[RestingOrder]:
        """Return all resting orders: buys, then sells, each by price and time."""
        return [*self._sides[BUY], *self._sides[SELL]]


class ExchangeState(Struct, array_like=True, kw_only=True):
    """All that the exchange knows; its encoding is what is stored and digested."""

    events: int = 0
    events_digest: bytes = bytes(32)
    """Over all payloads: two events swapped may leave the same books, but not the same digest."""
    refused: int = 0
    """Rows that are no order: unknown action or side, bad number, number already resting."""
    trades: int = 0
    quantity_traded: int = 0
    trades_digest: bytes = bytes(32)
    cancels: int = 0
    cancels_unknown: int = 0
    """Cancels of orders that never were, or are finished."""
    books: list[tuple[str, list[RestingOrder]]] = []
    """Resting orders by symbol; filled while the state is encoded or decoded."""


class Exchange:
    """Books by symbol, fed with an order flow."""

    def __init__(self, state: bytes | None = None) -> None:
        """Begin empty, or go on from a dumped state. Raises msgspec.ValidationError for another."""
        self._decode = msgspec.msgpack.Decoder(OrderRow).decode
        self._state = ExchangeState()
        if state is not None:
            self._state = msgspec.msgpack.decode(state, type=ExchangeState)
        self._books = {symbol: Book(orders) for symbol, orders in self._state.books}
        self._state.books = []
        self._touched: set[str] = set()

    def __reduce__(self) -> tuple[type[Exchange], tuple[bytes]]:
        """Return how a copy is made; the books that were touched are forgotten."""
        return Exchange, (self.dump(),)

    def apply(self, payloads: Iterable[bytes]) -> None:
        """Apply `payloads`, MessagePack maps of column to text, in their order."""
        state, decode = self._state, self._decode
        for payload in payloads:
            state.events += 1
            state.events_digest = _chained(state.events_digest, payload)
            try:
                row = decode(payload)
            # Hostile nesting ends in RecursionError, broken text in UnicodeDecodeError.
            except (ValueError, RecursionError):
                state.refused += 1
                continue
            self._touched.add(row.symbol)
            if not self._act(row):
                state.refused += 1

    @property
    def events(self) -> int:
        """The number of payloads that were applied."""
        return self._state.events

    def counters(self) -> dict[str, int]:
        """Return what there is to count, by name."""
        fields = msgspec.structs.asdict(self._state).items()
        resting = sum(len(book.orders) for book in self._books.values())
        counted = {name: value for name, value in fields if isinstance(value, int)}
        return counted | {"resting_orders": resting}

    def dump(self) -> bytes:
        """Return the whole state, which depends only on the payloads that were applied."""
        books = sorted((symbol, book) for symbol, book in self._books.items() if book.orders)
        images = [(symbol, book.by_priority()) for symbol, book in books]
        return _encode(msgspec.structs.replace(self._state, books=images))

    def digest(self) -> str:
        """Return the SHA-256 of the whole state, in hexadecimal."""
        return sha256(self.dump()).hexdigest()

    def take_touched(self) -> dict[str, bytes]:
        """Return the digest of each book that an order has named since the last call."""
        touched, self._touched = sorted(self._touched), set()
        return {symbol: self.book_digest(symbol) for symbol in touched}

    def book_digest(self, symbol: str) -> bytes:
        """Return the SHA-256 of what rests in a book, by price and time."""
        book = self._books.get(symbol)
        return sha256(_encode(book.by_priority() if book else [])).digest()

    def lose_an_order(self) -> None:
        """Forget a resting order that was not cancelled: what a replay is to find."""
        symbol, book = next((name, book) for name, book in self._books.items() if book.orders)
        book.remove(next(iter(book.orders)))
        self._touched.add(symbol)
        self._forget_if_empty(symbol, book)

    def _act(self, row: OrderRow) -> bool:
        """Apply a row; return whether it made sense."""
        if row.action == NEW:
            return self._place(row)
        if row.action != CANCEL:
            return False
        book = self._books.get(row.symbol)
        if book is not None and book.remove(row.order_no):
            self._state.cancels += 1
            self._forget_if_empty(row.symbol, book)
        else:
            self._state.cancels_unknown += 1
        return True

    def _place(self, row: OrderRow) -> bool:
        """Trade what can be traded of a new order, and add the rest to the book."""
        price_e4, quantity = _amount_of(row.price_e4), _amount_of(row.qty)
        book = self._books.get(row.symbol) or Book()
        is_order = price_e4 and quantity and row.side in (BUY, SELL)
        if not is_order or row.order_no in book.orders:
            return False
        for trade in book.take(row.side, price_e4, quantity):
            quantity -= trade.quantity
            self._record(row, trade)
        if quantity:
            book.add(RestingOrder(row.order_no, row.side, price_e4, quantity))
            self._books[row.symbol] = book
        else:
            self._forget_if_empty(row.symbol, book)
        return True

    def _forget_if_empty(self, symbol: str, book: Book) -> None:
        if not book.orders:
            self._books.pop(symbol, None)

    def _record(self, row: OrderRow, trade: Trade) -> None:
        state = self._state
        state.trades += 1
        state.quantity_traded += trade.quantity
        content = _encode((row.symbol, row.order_no, *trade))
        state.trades_digest = _chained(state.trades_digest, content)


def _chained(digest: bytes, content: bytes) -> bytes:
    """Return the running digest after `content`.

    Unlike a hash object it can be stored at any place and resumed; and since `digest` has a fixed
    length, no two sequences of contents share a digest.
    """
    return sha256(digest + content).digest()


def _amount_of(text: str) -> int:
    """Return the whole number above 0 that `text` is; 0 when it is none, or too large."""
    try:
        value = int(text)
    except ValueError:
        return 0
    return value if 0 < value <= AMOUNT_MAX else 0
