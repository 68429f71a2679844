"""Matches an order flow (new orders and cancels) by price-time priority."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from msgspec import Struct

from chainctl.demo.amount import amount
from chainctl.demo.book import BUY, SELL, RestingOrder
from chainctl.demo.books import BookImage, Books
from chainctl.demo.digest import chained

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chainctl.demo.book import Fill

NEW: Final = "new"
CANCEL: Final = "cancel"


class FlowRow(Struct, gc=False):
    """The columns of an order flow that matching needs; others may stand beside them.

    A column that a row lacks reads as empty: such a row is counted as refused, like one with a
    price that is no number. One bad order must not stop an exchange.
    """

    action: str = ""
    symbol: str = ""
    order_no: str = ""
    side: str = ""
    price_e4: str = ""
    qty: str = ""


FLOW_COLUMNS: Final = frozenset(FlowRow.__struct_fields__)


class FlowState(Struct, array_like=True, kw_only=True):
    """All that matching knows; its encoding is what is stored and digested."""

    events: int = 0
    events_digest: bytes = bytes(32)
    """Over all payloads: two events swapped may leave the same books, but not the same digest."""
    trades: int = 0
    trades_digest: bytes = bytes(32)
    quantity_traded: int = 0
    cancels: int = 0
    cancels_unknown: int = 0
    """Cancels of orders that never were, or are finished."""
    refused: int = 0
    """Rows that are no order: unknown action or side, bad number, number already resting."""
    books: list[BookImage] = []


class Matching:
    """Books by symbol, fed with an order flow. Deterministic."""

    name: ClassVar[str] = "matching by price-time priority"

    def __init__(self) -> None:
        self._state = FlowState()
        self._books = Books()
        self._decode = msgspec.msgpack.Decoder(FlowRow).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def apply(self, payloads: Iterable[bytes]) -> None:
        """Apply `payloads`, MessagePack maps of column to text, in their order."""
        state, decode = self._state, self._decode
        for payload in payloads:
            state.events += 1
            state.events_digest = chained(state.events_digest, payload)
            try:
                row = decode(payload)
            except msgspec.MsgspecError:
                state.refused += 1
                continue
            if row.action == NEW:
                self._place(row)
            elif row.action == CANCEL:
                self._cancel(row)
            else:
                state.refused += 1

    def counters(self) -> dict[str, int]:
        """Return what there is to count."""
        state = self._state
        return {
            "events": state.events,
            "trades": state.trades,
            "quantity_traded": state.quantity_traded,
            "cancels": state.cancels,
            "cancels_unknown": state.cancels_unknown,
            "refused": state.refused,
            "resting_orders": self._books.resting_orders(),
        }

    def dump(self) -> bytes:
        """Return the state, from which `load` goes on."""
        self._state.books = self._books.images()
        try:
            return self._encode(self._state)
        finally:
            self._state.books = []

    def load(self, state: bytes) -> None:
        """Go on from a dumped state. Raises msgspec.ValidationError for anything else."""
        self._state = msgspec.msgpack.decode(state, type=FlowState)
        self._books = Books.from_images(self._state.books)
        self._state.books = []

    def digest(self) -> str:
        """Return the digest of the state, in hexadecimal."""
        return sha256(self.dump()).hexdigest()

    def _place(self, row: FlowRow) -> None:
        """Trade what can be traded of a new order, and let the rest of it rest."""
        price_e4, quantity = amount(row.price_e4), amount(row.qty)
        if not price_e4 or not quantity or row.side not in (BUY, SELL):
            self._state.refused += 1
            return
        book = self._books[row.symbol]
        if row.order_no in book:
            self._state.refused += 1
            return
        for fill in book.take(row.side, price_e4, quantity):
            quantity -= fill.quantity
            self._record(row, fill)
        if quantity:
            book.add(RestingOrder(row.order_no, row.side, price_e4, quantity))
        else:
            self._books.drop_if_empty(row.symbol)

    def _record(self, row: FlowRow, fill: Fill) -> None:
        """Take a trade into the books' account of trades."""
        state = self._state
        state.trades += 1
        state.quantity_traded += fill.quantity
        trade = self._encode((row.symbol, row.order_no, *fill))
        state.trades_digest = chained(state.trades_digest, trade)

    def _cancel(self, row: FlowRow) -> None:
        """Take an order out, if it still rests."""
        if self._books[row.symbol].remove(row.order_no):
            self._state.cancels += 1
        else:
            self._state.cancels_unknown += 1
        self._books.drop_if_empty(row.symbol)
