"""What the matching service feeds: matching, a venue's feed, or a running digest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from orderchain_demo.book import BUY, SELL, BookImage, Books, RestingOrder, amount_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from orderchain_demo.book import Trade


_encoder = msgspec.msgpack.Encoder()


def chained(digest: bytes, content: bytes) -> bytes:
    """Return the running digest after `content`.

    Unlike a hash object it can be stored at any place and resumed; and since `digest` has a fixed
    length, no two sequences of contents share a digest.
    """
    return sha256(digest + content).digest()


class PayloadHandler(ABC):
    """Processes payloads in order; the same payloads give the same state and digest.

    How the payloads are cut into calls makes no difference.
    """

    name: ClassVar[str]
    """What it does, for the summary."""

    @abstractmethod
    def apply(self, payloads: Iterable[bytes]) -> None:
        """Process `payloads` in their order. A payload that makes no sense is counted."""

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """Return what there is to count, by name."""

    @abstractmethod
    def dump(self) -> bytes:
        """Return the whole state, to be stored beside the checkpoint."""

    @abstractmethod
    def load(self, state: bytes) -> None:
        """Go on from a dumped state. Raises msgspec.ValidationError for anything else."""

    def digest(self) -> str:
        """Return the SHA-256 of the whole state, in hexadecimal."""
        return sha256(self.dump()).hexdigest()


class PayloadState(Struct, array_like=True, kw_only=True):
    """What `PayloadDigest` has seen."""

    payloads: int = 0
    digest: bytes = bytes(32)


class PayloadDigest(PayloadHandler):
    """Takes the place of an order book where the columns are not those of one.

    It knows the content and the order of all payloads, and nothing of what they mean.
    """

    name: ClassVar[str] = "payload digest"

    def __init__(self) -> None:
        self._state = PayloadState()

    def apply(self, payloads: Iterable[bytes]) -> None:
        """Take `payloads` into the digest, in their order."""
        digest, count = self._state.digest, 0
        for payload in payloads:
            digest = chained(digest, payload)
            count += 1
        self._state.digest = digest
        self._state.payloads += count

    def counters(self) -> dict[str, int]:
        """Return what there is to count."""
        return {"payloads": self._state.payloads}

    def dump(self) -> bytes:
        """Return the state, from which `load` goes on."""
        return _encoder.encode(self._state)

    def load(self, state: bytes) -> None:
        """Go on from a dumped state. Raises msgspec.ValidationError for anything else."""
        self._state = msgspec.msgpack.decode(state, type=PayloadState)


class OrderRow(Struct, gc=False):
    """The columns that every book needs; an input may have others.

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


class BookKeeper(PayloadHandler, Generic[Row, State]):
    """Books by symbol, and a state, both changed by rows alone. Deterministic.

    A concrete keeper names the types of its rows and its state, and says what a row does.
    """

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

    @abstractmethod
    def _act(self, row: Row) -> bool:
        """Apply a row; return whether it made sense."""

    def _new_order(self, row: Row) -> RestingOrder | None:
        """Return the order in a row; None if it is not valid, or one of its number rests."""
        order = order_of(row)
        return None if order is None or row.order_no in self._books[row.symbol] else order

    def _remove(self, row: Row) -> bool:
        """Take the row's order out; return whether it rested."""
        has_rested = self._books[row.symbol].remove(row.order_no)
        self._books.drop_if_empty(row.symbol)
        return has_rested


def order_of(row: OrderRow) -> RestingOrder | None:
    """Return the order in a row; None when its side, price or quantity is not valid."""
    price_e4, quantity = amount_of(row.price_e4), amount_of(row.qty)
    if not price_e4 or not quantity or row.side not in (BUY, SELL):
        return None
    return RestingOrder(row.order_no, row.side, price_e4, quantity)


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
        """Trade what can be traded of a new order, and add the rest to the book."""
        order = self._new_order(row)
        if order is None:
            return False
        book = self._books[row.symbol]
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
        trade = self._encode((row.symbol, row.order_no, *fill))
        state.trades_digest = chained(state.trades_digest, trade)


ADD: Final = "A"
DELETE: Final = "D"
TRADE: Final = "T"


class FeedRow(OrderRow, gc=False):
    """One fact of the venue."""

    contra_order_no: str = ""
    """In a trade, the order on the other side. The venue has already matched."""


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
    """Trades of more than was left of an order. The order is removed."""


class Venue(BookKeeper[FeedRow, FeedState]):
    """Books by symbol, rebuilt from a venue's feed. Nothing is matched. Deterministic.

    An order that trades on arrival shows as a trade first, and is added with its rest;
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
        """Add an order to the book as the venue says, even where it could trade."""
        order = self._new_order(row)
        if order is None:
            return False
        self._books[row.symbol].add(order)
        self._state.adds += 1
        return True

    def _trade(self, row: FeedRow) -> bool:
        """Take the traded quantity from the one of the two named orders that rests."""
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


MATCHING: Final = "matching"
VENUE: Final = "venue"
PAYLOADS: Final = "payloads"

HANDLERS: Final[Mapping[str, type[PayloadHandler]]] = MappingProxyType(
    {MATCHING: Matching, VENUE: Venue, PAYLOADS: PayloadDigest}
)


def handler_kind(columns: Collection[str]) -> str:
    """Return which of `HANDLERS` an input with these columns needs.

    A venue's feed has all columns of an order flow, and the other order of a trade as well.
    """
    if FEED_COLUMNS.issubset(columns):
        return VENUE
    if FLOW_COLUMNS.issubset(columns):
        return MATCHING
    return PAYLOADS
