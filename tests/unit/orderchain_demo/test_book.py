from random import Random
from typing import Any

import msgspec
import pytest

from orderchain_demo.book import BUY, SELL, Book, Exchange, RestingOrder, Trade
from orderchain_demo.flow import order_flow


@pytest.fixture
def book() -> Book:
    return Book([
        RestingOrder("s1", SELL, 101, 10),
        RestingOrder("s2", SELL, 100, 10),
        RestingOrder("s3", SELL, 100, 10),
        RestingOrder("b1", BUY, 98, 10),
        RestingOrder("b2", BUY, 99, 10),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("side", "price_e4", "quantity", "trades"),
    [
        (BUY, 101, 25, [("s2", 100, 10), ("s3", 100, 10), ("s1", 101, 5)]),
        (SELL, 1, 15, [("b2", 99, 10), ("b1", 98, 5)]),
        (BUY, 100, 50, [("s2", 100, 10), ("s3", 100, 10)]),
        (BUY, 99, 50, []),
    ],
)
def test_take_gives_the_best_price_then_the_oldest_order_up_to_the_limit(
    side: str, price_e4: int, quantity: int, trades: list[tuple[str, int, int]], book: Book
) -> None:
    assert book.take(side, price_e4, quantity) == [Trade(*trade) for trade in trades]


def test_partial_fill_keeps_the_place_in_time_and_a_new_order_has_the_last(book: Book) -> None:
    book.take(BUY, 100, 4)
    assert book.take(BUY, 100, 7) == [Trade("s2", 100, 6), Trade("s3", 100, 1)]
    book.add(RestingOrder("s2", SELL, 100, 10))
    assert [trade.order_no for trade in book.take(BUY, 100, 20)] == ["s3", "s2"]


def test_remove_frees_the_level_and_says_whether_the_order_rested(book: Book) -> None:
    assert book.remove("b2")
    assert not book.remove("b2")
    assert book.take(SELL, 1, 1) == [Trade("b1", 98, 1)]


def test_orders_by_priority_make_the_book_again(book: Book) -> None:
    orders = book.by_priority()
    assert [order.order_no for order in orders] == ["b2", "b1", "s2", "s3", "s1"]
    assert Book(orders).by_priority() == orders


def row(**columns: str) -> bytes:
    return msgspec.msgpack.encode(columns)


def new(order_no: str, side: str, price_e4: str, qty: str, symbol: str = "A") -> bytes:
    return row(
        action="new", symbol=symbol, order_no=order_no, side=side, price_e4=price_e4, qty=qty
    )


def cancel(order_no: str, symbol: str = "A") -> bytes:
    return row(action="cancel", symbol=symbol, order_no=order_no)


def applied(payloads: list[bytes], state: bytes | None = None) -> Exchange:
    exchange = Exchange(state)
    exchange.apply(payloads)
    return exchange


SELL_10 = new("1", "S", "100", "10")
NONSENSE = [
    new("1", "S", "free", "10"),
    new("1", "S", "100", "-5"),
    new("1", "S", "100", "9" * 40),
    new("1", "X", "100", "10"),
    row(action="amend", symbol="A", order_no="1"),
    b"\xc1 no msgpack",
    b"\x93\x01\x02\x03",
]


@pytest.mark.parametrize(
    ("payloads", "counted"),
    [
        ([SELL_10, new("2", "B", "105", "25")],
         {"trades": 1, "quantity_traded": 10, "resting_orders": 1}),
        ([SELL_10, new("2", "B", "100", "10", "B")], {"trades": 0, "resting_orders": 2}),
        ([SELL_10, cancel("1"), new("2", "B", "100", "10")], {"cancels": 1, "trades": 0}),
        ([SELL_10, new("2", "B", "100", "10"), cancel("1"), cancel("9"), cancel("1", "none")],
         {"cancels": 0, "cancels_unknown": 3, "refused": 0, "resting_orders": 0}),
        ([*NONSENSE, SELL_10, SELL_10], {"refused": 8, "events": 9, "resting_orders": 1}),
    ],
)  # fmt: skip
def test_apply_counts_what_the_orders_do(payloads: list[bytes], counted: dict[str, Any]) -> None:
    counters = applied(payloads).counters()
    assert {name: counters[name] for name in counted} == counted


def flow(seed: int, orders: int) -> list[bytes]:
    """The payloads of a generated flow, as the intake of a file makes them."""
    return [
        row(**{name: str(value) for name, value in order._asdict().items()})
        for order in order_flow(seed, orders)
    ]


def test_digest_is_the_same_however_the_flow_is_cut_and_wherever_it_was_stored() -> None:
    payloads, stored = flow(11, 3_000), None
    whole = applied(payloads)
    assert whole.counters()["trades"] > 100
    for start in range(0, len(payloads), 77):
        stored = applied(payloads[start : start + 77], stored).dump()
    assert stored == whole.dump()
    assert Exchange(stored).digest() == whole.digest()


def test_digest_differs_with_an_event_left_out_or_two_swapped_or_another_trader() -> None:
    payloads = flow(12, 2_000)
    digests = {applied(payloads).digest()}
    for at in Random(12).sample(range(len(payloads) - 1), 20):
        first, second = payloads[at : at + 2]
        digests.add(applied([*payloads[:at], *payloads[at + 1 :]]).digest())
        digests.add(applied([*payloads[:at], second, first, *payloads[at + 2 :]]).digest())
    assert len(digests) == 41
    takers = [applied([SELL_10, new(taker, "B", "100", "10")]).digest() for taker in "23"]
    assert takers[0] != takers[1]


def test_state_that_is_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected"):
        Exchange(b"\x93\x01\x02\x03")


def test_memory_with_a_long_flow_is_bounded_by_what_rests() -> None:
    exchange = Exchange()
    for start in range(40):
        exchange.apply(flow(start, 500))
    assert len(exchange.dump()) < 200 + 40 * exchange.counters()["resting_orders"]
