"""The demo's books as a fold, which Spark replays beside the matching service; a second version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from chain_verifier.dataframe.fold import Fold
from orderchain_demo.book import Exchange, OrderRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.model import Event

QUANTITY_MAX: Final = 4_000
"""The one rule that the second version changes: a larger order is left out."""

_decode = msgspec.msgpack.Decoder(OrderRow).decode


class SymbolBook:
    """The exchange as far as one symbol goes: books do not know of each other."""

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol
        self.exchange = Exchange()

    def digest(self) -> bytes:
        """Return what the matching service stores of this book."""
        return self.exchange.book_digest(self.symbol)


def symbol_of(order: Event) -> str:
    """Return the symbol that an order names; empty for what is no order."""
    try:
        return _decode(order.payload).symbol
    except (ValueError, RecursionError):
        return ""


def step(book: SymbolBook, orders: Sequence[Event]) -> tuple[SymbolBook, tuple[()]]:
    """Apply the next orders of a symbol."""
    book.exchange.apply(order.payload for order in orders)
    return book, ()


def is_large(order: Event) -> bool:
    """Return whether the second version leaves an order out."""
    try:
        return int(_decode(order.payload).qty) > QUANTITY_MAX
    except (ValueError, RecursionError):
        return False


def second_step(book: SymbolBook, orders: Sequence[Event]) -> tuple[SymbolBook, tuple[()]]:
    """Apply the next orders of a symbol, but for large ones."""
    return step(book, [order for order in orders if not is_large(order)])


BOOKS = Fold(start=SymbolBook, step=step, digest=SymbolBook.digest, group=symbol_of)
SECOND = Fold(start=SymbolBook, step=second_step, digest=SymbolBook.digest, group=symbol_of)
