"""Books by symbol, and how they are stored."""

from __future__ import annotations

from chainctl.demo.book import Book, RestingOrder

BookImage = tuple[str, list[RestingOrder]]
"""A symbol and its resting orders by priority."""


class Books(dict[str, Book]):
    """The books that hold orders. A book without orders is dropped, and made again when needed."""

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
        """Return all books in a form that depends on what rests in them alone."""
        return [(symbol, self[symbol].orders()) for symbol in sorted(self) if self[symbol]]

    @classmethod
    def from_images(cls, images: list[BookImage]) -> Books:
        """Return the books that `images` was taken of."""
        books = cls()
        for symbol, orders in images:
            for order in orders:
                books[symbol].add(order)
        return books
