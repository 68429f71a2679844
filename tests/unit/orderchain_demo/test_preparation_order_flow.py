from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from hashlib import sha256

from orderchain_demo.handlers import CANCEL, NEW, Matching
from orderchain_demo.preparation import (
    COLUMNS,
    LIVE_ORDERS_MAX,
    OPENING_MS,
    order_flow,
    write_order_flow,
)

FlowPayloads = Callable[[int, int], list[bytes]]

FLOW_DIGEST = "9b1ef4dde126c2998805b1274b36956c6f4a2c210859dd6c57be1cc421b0c615"


def written(seed: int, orders: int) -> str:
    file = io.StringIO()
    write_order_flow(file, seed, orders)
    return file.getvalue()


def test_flow_with_the_same_seed_has_the_same_bytes_on_every_python() -> None:
    assert sha256(written(7, 5_000).encode()).hexdigest() == FLOW_DIGEST


def test_flow_with_another_seed_differs() -> None:
    assert written(7, 100) != written(8, 100)


def test_flow_has_as_many_rows_as_asked_below_its_header() -> None:
    lines = written(3, 1_234).splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert len(lines) == 1_235


def test_flow_is_made_of_limit_orders_and_cancels_of_several_symbols() -> None:
    orders = list(order_flow(1, 20_000))
    actions = Counter(order.action for order in orders)
    assert set(actions) == {NEW, CANCEL}
    assert 0.3 < actions[CANCEL] / len(orders) < 0.5
    assert len({order.symbol for order in orders}) == 5
    assert {order.side for order in orders} == {"B", "S"}
    assert all(order.price_e4 > 0 and order.price_e4 % 100 == 0 for order in orders)
    assert all(order.qty > 0 and order.qty % 100 == 0 for order in orders)


def test_flow_goes_forward_in_time_and_numbers_each_order_once() -> None:
    orders = list(order_flow(2, 5_000))
    times = [order.ts_ms for order in orders]
    assert times[0] >= OPENING_MS
    assert times == sorted(times)
    numbers = [order.order_no for order in orders if order.action == NEW]
    assert len(set(numbers)) == len(numbers)


def test_flow_cancels_each_order_at_most_once_and_never_before_it_came() -> None:
    live: set[int] = set()
    cancels = 0
    for order in order_flow(4, 20_000):
        if order.action == NEW:
            live.add(order.order_no)
            continue
        assert order.order_no in live
        live.remove(order.order_no)
        cancels += 1
    assert cancels > 1_000


def test_flow_of_any_length_leaves_a_bounded_number_of_orders_alive() -> None:
    alive = 0
    for order in order_flow(5, 160_000):
        alive += 1 if order.action == NEW else -1
        assert alive <= LIVE_ORDERS_MAX


def test_flow_prices_stay_near_where_they_began() -> None:
    orders = list(order_flow(6, 60_000))
    for symbol in {order.symbol for order in orders}:
        prices = [order.price_e4 for order in orders if order.symbol == symbol]
        assert max(prices) - min(prices) < 40_000


def test_flow_trades_and_cancels_and_leaves_orders_resting(
    flow_payloads: FlowPayloads,
) -> None:
    matching = Matching()
    matching.apply(flow_payloads(9, 20_000))
    counted = matching.counters()
    assert counted["refused"] == 0
    assert counted["trades"] > 1_000
    assert counted["cancels"] > 3 * counted["cancels_unknown"] > 0
    assert counted["resting_orders"] > 100
