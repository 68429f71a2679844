"""What matching and the rebuilding of a venue have in common: rows in, books and counters out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Struct

from chainctl.demo.amount import amount_of
from chainctl.demo.book import BUY, SELL, RestingOrder
from chainctl.demo.books import BookImage, Books
from chainctl.demo.digest import chained

if TYPE_CHECKING:
    from collections.abc import Iterable


class OrderRow(Struct, gc=False):
    """The columns that every book needs; others may stand beside them in an input.

    A column that a row lacks reads as empty, and then counts as a bad one: the row is refused. One
    bad order must not stop an exchange.
    """

    action: str = ""
    symbol: str = ""
    order_no: str = ""
    side: str = ""
    price_e4: str = ""
    qty: str = ""


class KeeperState(Struct, array_like=True, kw_only=True):
    """All that a keeper knows; its encoding is what is stored and digested."""

    events: int = 0
    events_digest: bytes = bytes(32)
    """Over all payloads: two events swapped may leave the same books, but not the same digest."""
    refused: int = 0
    """Rows that make no sense: unknown action or side, bad number, number already resting."""
    trades: int = 0
    quantity_traded: int = 0
    books: list[BookImage] = []
    """Filled while the state is encoded or decoded."""


Row = TypeVar("Row", bound=OrderRow)
State = TypeVar("State", bound=KeeperState)


class BookKeeper(ABC, Generic[Row, State]):
    """Books by symbol, and a state, both changed by rows alone. Deterministic.

    A concrete keeper names the types of its rows and its state, and says what a row does.
    """

    name: ClassVar[str]

    def __init__(self, row_type: type[Row], state_type: type[State]) -> None:
        self._decode = msgspec.msgpack.Decoder(row_type).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._state_type = state_type
        self._state = state_type()
        self._books = Books()

    def apply(self, payloads: Iterable[bytes]) -> None:
        """Apply `payloads`, MessagePack maps of column to text, in their order."""
        state, decode, act = self._state, self._decode, self._act
        for payload in payloads:
            state.events += 1
            state.events_digest = chained(state.events_digest, payload)
            try:
                row = decode(payload)
            # Hostile nesting ends in RecursionError, broken text in UnicodeDecodeError.
            except (ValueError, RecursionError):
                state.refused += 1
                continue
            if not act(row):
                state.refused += 1

    def counters(self) -> dict[str, int]:
        """Return what there is to count."""
        state = self._state
        counted = {
            name: value
            for name in state.__struct_fields__
            if isinstance(value := getattr(state, name), int)
        }
        return counted | {"resting_orders": self._books.resting_orders()}

    def dump(self) -> bytes:
        """Return the state, from which `load` goes on."""
        self._state.books = self._books.images()
        try:
            return self._encode(self._state)
        finally:
            self._state.books = []

    def load(self, state: bytes) -> None:
        """Go on from a dumped state. Raises msgspec.ValidationError for anything else."""
        self._state = msgspec.msgpack.decode(state, type=self._state_type)
        self._books = Books.from_images(self._state.books)
        self._state.books = []

    def digest(self) -> str:
        """Return the digest of the state, in hexadecimal."""
        return sha256(self.dump()).hexdigest()

    @abstractmethod
    def _act(self, row: Row) -> bool:
        """Apply a row; say whether it made sense."""

    def _remove(self, row: Row) -> bool:
        """Take the row's order out; say whether it rested."""
        has_rested = self._books[row.symbol].remove(row.order_no)
        self._books.drop_if_empty(row.symbol)
        return has_rested


def order_of(row: OrderRow) -> RestingOrder | None:
    """Return the order that a row tells of; None when its side, price or quantity is no such."""
    price_e4, quantity = amount_of(row.price_e4), amount_of(row.qty)
    if not price_e4 or not quantity or row.side not in (BUY, SELL):
        return None
    return RestingOrder(row.order_no, row.side, price_e4, quantity)
