"""What the matching service does with its orders: order books by symbol, matched by price and time.

Any input has a state: each payload is in the digest, also one that is no order of these columns.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from orderchain_demo.book import BUY, SELL, BookImage, Books, RestingOrder, amount_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orderchain_demo.book import Trade

NEW: Final = "new"
CANCEL: Final = "cancel"

_encode: Final = msgspec.msgpack.Encoder().encode


def chained(digest: bytes, content: bytes) -> bytes:
    """Return the running digest after `content`.

    Unlike a hash object it can be stored at any place and resumed; and since `digest` has a fixed
    length, no two sequences of contents share a digest.
    """
    return sha256(digest + content).digest()


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


class MatchingState(Struct, array_like=True, kw_only=True):
    """All that matching knows; its encoding is what is stored and digested."""

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
    books: list[BookImage] = []
    """Filled while the state is encoded or decoded."""


class Matching:
    """Books by symbol, fed with an order flow.

    The same payloads in the same order give the same state and digest, however they are cut into
    calls.
    """

    def __init__(self) -> None:
        self._decode = msgspec.msgpack.Decoder(OrderRow).decode
        self._state = MatchingState()
        self._books = Books()

    def apply(self, payloads: Iterable[bytes]) -> None:
        """Apply `payloads`, MessagePack maps of column to text, in their order."""
        state, decode = self._state, self._decode
        for payload in payloads:
            state.events += 1
            state.events_digest = chained(state.events_digest, payload)
            try:
                row = decode(payload)
            # Hostile nesting ends in RecursionError, broken text in UnicodeDecodeError.
            except (ValueError, RecursionError):
                state.refused += 1
                continue
            if not self._act(row):
                state.refused += 1

    def counters(self) -> dict[str, int]:
        """Return what there is to count, by name."""
        state = self._state
        counted = {
            name: value
            for name in state.__struct_fields__
            if isinstance(value := getattr(state, name), int)
        }
        return counted | {"resting_orders": self._books.resting_orders()}

    def dump(self) -> bytes:
        """Return the whole state, to be stored beside the checkpoint; `load` goes on from it."""
        self._state.books = self._books.images()
        try:
            return _encode(self._state)
        finally:
            self._state.books = []

    def load(self, state: bytes) -> None:
        """Go on from a dumped state. Raises msgspec.ValidationError for anything else."""
        self._state = msgspec.msgpack.decode(state, type=MatchingState)
        self._books = Books.from_images(self._state.books)
        self._state.books = []

    def digest(self) -> str:
        """Return the SHA-256 of the whole state, in hexadecimal."""
        return sha256(self.dump()).hexdigest()

    def _act(self, row: OrderRow) -> bool:
        """Apply a row; return whether it made sense."""
        if row.action == NEW:
            return self._place(row)
        if row.action != CANCEL:
            return False
        if self._books[row.symbol].remove(row.order_no):
            self._state.cancels += 1
        else:
            self._state.cancels_unknown += 1
        self._books.drop_if_empty(row.symbol)
        return True

    def _place(self, row: OrderRow) -> bool:
        """Trade what can be traded of a new order, and add the rest to the book."""
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

    def _record(self, row: OrderRow, fill: Trade) -> None:
        """Add a trade to the counters and the digest of trades."""
        state = self._state
        state.trades += 1
        state.quantity_traded += fill.quantity
        trade = _encode((row.symbol, row.order_no, *fill))
        state.trades_digest = chained(state.trades_digest, trade)


def order_of(row: OrderRow) -> RestingOrder | None:
    """Return the order in a row; None when its side, price or quantity is not valid."""
    price_e4, quantity = amount_of(row.price_e4), amount_of(row.qty)
    if not price_e4 or not quantity or row.side not in (BUY, SELL):
        return None
    return RestingOrder(row.order_no, row.side, price_e4, quantity)
