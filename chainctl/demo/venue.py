"""Rebuilds the books of a venue from its feed: orders added, orders deleted, trades as facts."""

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

ADD: Final = "A"
DELETE: Final = "D"
TRADE: Final = "T"


class FeedRow(Struct, gc=False):
    """The columns of a venue's feed that its books need; others may stand beside them.

    A column that a row lacks reads as empty.
    """

    action: str = ""
    symbol: str = ""
    order_no: str = ""
    contra_order_no: str = ""
    """Of a trade: the order on the other side. The venue has matched already."""
    side: str = ""
    price_e4: str = ""
    qty: str = ""


FEED_COLUMNS: Final = frozenset(FeedRow.__struct_fields__)


class FeedState(Struct, array_like=True, kw_only=True):
    """All that is known of the venue; its encoding is what is stored and digested."""

    events: int = 0
    events_digest: bytes = bytes(32)
    """Over all payloads: two events swapped may leave the same books, but not the same digest."""
    adds: int = 0
    deletes: int = 0
    deletes_unknown: int = 0
    """Deletes of orders that do not rest."""
    trades: int = 0
    trades_not_resting: int = 0
    """Trades neither of whose orders rests."""
    trades_overfilling: int = 0
    """Trades of more than was left of an order. It is removed."""
    quantity_traded: int = 0
    refused: int = 0
    """Rows that are no fact: unknown action or side, bad number, number already resting."""
    books: list[BookImage] = []


class Venue:
    """Books by symbol, rebuilt from a venue's feed. Nothing is matched. Deterministic.

    An order that trades on arrival shows as a trade first, and is added with what is left of it;
    so commonly one order of a trade rests and the other does not.
    """

    name: ClassVar[str] = "rebuilding of a venue's books"

    def __init__(self) -> None:
        self._state = FeedState()
        self._books = Books()
        self._decode = msgspec.msgpack.Decoder(FeedRow).decode

    def apply(self, payloads: Iterable[bytes]) -> None:
        """Apply `payloads`, MessagePack maps of column to text, in their order."""
        state, decode = self._state, self._decode
        actions = {ADD: self._add, DELETE: self._delete, TRADE: self._trade}
        for payload in payloads:
            state.events += 1
            state.events_digest = chained(state.events_digest, payload)
            try:
                row = decode(payload)
            except msgspec.MsgspecError:
                state.refused += 1
                continue
            act = actions.get(row.action)
            if act is None:
                state.refused += 1
            else:
                act(row)

    def counters(self) -> dict[str, int]:
        """Return what there is to count."""
        state = self._state
        return {
            "events": state.events,
            "adds": state.adds,
            "deletes": state.deletes,
            "deletes_unknown": state.deletes_unknown,
            "trades": state.trades,
            "trades_not_resting": state.trades_not_resting,
            "trades_overfilling": state.trades_overfilling,
            "quantity_traded": state.quantity_traded,
            "refused": state.refused,
            "resting_orders": self._books.resting_orders(),
        }

    def dump(self) -> bytes:
        """Return the state, from which `load` goes on."""
        self._state.books = self._books.images()
        try:
            return msgspec.msgpack.encode(self._state)
        finally:
            self._state.books = []

    def load(self, state: bytes) -> None:
        """Go on from a dumped state. Raises msgspec.ValidationError for anything else."""
        self._state = msgspec.msgpack.decode(state, type=FeedState)
        self._books = Books.from_images(self._state.books)
        self._state.books = []

    def digest(self) -> str:
        """Return the digest of the state, in hexadecimal."""
        return sha256(self.dump()).hexdigest()

    def _add(self, row: FeedRow) -> None:
        """Let an order rest as the venue says, even where it could trade."""
        price_e4, quantity = amount(row.price_e4), amount(row.qty)
        book = self._books[row.symbol]
        if not price_e4 or not quantity or row.side not in (BUY, SELL) or row.order_no in book:
            self._state.refused += 1
            self._books.drop_if_empty(row.symbol)
            return
        book.add(RestingOrder(row.order_no, row.side, price_e4, quantity))
        self._state.adds += 1

    def _delete(self, row: FeedRow) -> None:
        """Take an order out, if it rests."""
        if self._books[row.symbol].remove(row.order_no):
            self._state.deletes += 1
        else:
            self._state.deletes_unknown += 1
        self._books.drop_if_empty(row.symbol)

    def _trade(self, row: FeedRow) -> None:
        """Take the traded quantity from whichever of the two named orders rests."""
        quantity = amount(row.qty)
        if not quantity:
            self._state.refused += 1
            return
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
