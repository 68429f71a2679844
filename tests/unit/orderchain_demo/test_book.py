from __future__ import annotations

import pytest

from orderchain_demo.book import BUY, SELL, Book, RestingOrder, Trade


def order(order_no: str, side: str, price_e4: int, quantity: int) -> RestingOrder:
    return RestingOrder(order_no, side, price_e4, quantity)


@pytest.fixture
def book() -> Book:
    book = Book()
    book.add(order("s1", SELL, 101, 10))
    book.add(order("s2", SELL, 100, 10))
    book.add(order("s3", SELL, 100, 10))
    book.add(order("b1", BUY, 98, 10))
    book.add(order("b2", BUY, 99, 10))
    return book


def test_take_with_several_levels_gives_best_price_then_oldest_order(book: Book) -> None:
    assert book.take(BUY, 101, 25) == [
        Trade("s2", 100, 10),
        Trade("s3", 100, 10),
        Trade("s1", 101, 5),
    ]


def test_take_by_a_sell_starts_at_the_highest_buy(book: Book) -> None:
    assert book.take(SELL, 1, 15) == [Trade("b2", 99, 10), Trade("b1", 98, 5)]


def test_take_with_worse_levels_stops_at_the_limit(book: Book) -> None:
    assert book.take(BUY, 100, 50) == [Trade("s2", 100, 10), Trade("s3", 100, 10)]
    assert "s1" in book


def test_take_with_no_price_in_reach_gives_nothing(book: Book) -> None:
    assert book.take(BUY, 99, 50) == []
    assert len(book) == 5


def test_partial_fill_keeps_the_place_in_time(book: Book) -> None:
    book.take(BUY, 100, 4)
    assert book.take(BUY, 100, 7) == [Trade("s2", 100, 6), Trade("s3", 100, 1)]


def test_remove_with_resting_order_frees_its_level(book: Book) -> None:
    assert book.remove("b2")
    assert book.take(SELL, 1, 1) == [Trade("b1", 98, 1)]
    assert not book.remove("b2")


def test_remove_then_add_again_loses_the_place_in_time(book: Book) -> None:
    book.remove("s2")
    book.add(order("s2", SELL, 100, 10))
    assert [fill.order_no for fill in book.take(BUY, 100, 20)] == ["s3", "s2"]


def test_orders_stand_by_priority_and_make_the_book_again(book: Book) -> None:
    orders = book.orders()
    assert [resting.order_no for resting in orders] == ["b2", "b1", "s2", "s3", "s1"]
    again = Book()
    for resting in orders:
        again.add(resting)
    assert again.orders() == orders


def test_memory_of_levels_is_freed_when_their_orders_are_gone() -> None:
    book = Book()
    for price_e4 in range(1, 2_000):
        book.add(order("x", BUY, price_e4, 1))
        book.remove("x")
    assert book.take(SELL, 1, 1) == []
    assert book.orders() == []
