from __future__ import annotations

from collections import Counter
from hashlib import sha256

from orderchain_demo.book import CANCEL, NEW
from orderchain_demo.flow import LIVE_ORDERS_MAX, OPENING_MS, csv_lines, order_flow

FLOW_DIGEST = "9b1ef4dde126c2998805b1274b36956c6f4a2c210859dd6c57be1cc421b0c615"


def test_flow_with_the_same_seed_has_the_same_bytes_on_every_python() -> None:
    assert sha256("".join(csv_lines(7, 5_000)).encode()).hexdigest() == FLOW_DIGEST
    assert list(csv_lines(7, 100)) != list(csv_lines(8, 100))


def test_flow_is_one_that_an_exchange_could_get() -> None:
    orders = list(order_flow(1, 60_000))
    actions = Counter(order.action for order in orders)
    assert set(actions) == {NEW, CANCEL}
    assert 0.3 < actions[CANCEL] / len(orders) < 0.5
    assert {order.side for order in orders} == {"B", "S"}
    assert all(order.price_e4 > 0 and order.price_e4 % 100 == 0 for order in orders)
    assert all(order.qty > 0 and order.qty % 100 == 0 for order in orders)
    times = [OPENING_MS, *(order.ts_ms for order in orders)]
    assert times == sorted(times)
    for symbol in {order.symbol for order in orders}:
        prices = [order.price_e4 for order in orders if order.symbol == symbol]
        assert max(prices) - min(prices) < 40_000


def test_flow_cancels_live_orders_alone_and_keeps_their_number_bounded() -> None:
    live: set[int] = set()
    for order in order_flow(5, 160_000):
        if order.action == NEW:
            assert order.order_no not in live
            live.add(order.order_no)
        else:
            live.remove(order.order_no)
        assert len(live) <= LIVE_ORDERS_MAX
