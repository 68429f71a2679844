from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from hashlib import sha256

from orderchain_demo.matching import CANCEL, NEW, Matching
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
    write_order_flow(file, seed, orders, lambda _: None)
    return file.getvalue()


def test_flow_with_the_same_seed_has_the_same_bytes_on_every_python() -> None:
    assert sha256(written(7, 5_000).encode()).hexdigest() == FLOW_DIGEST
    assert written(7, 100) != written(8, 100)
    lines = written(3, 1_234).splitlines()
    assert (lines[0], len(lines)) == (",".join(COLUMNS), 1_235)


def test_flow_is_one_that_an_exchange_could_get() -> None:
    orders = list(order_flow(1, 60_000))
    actions = Counter(order.action for order in orders)
    assert set(actions) == {NEW, CANCEL}
    assert 0.3 < actions[CANCEL] / len(orders) < 0.5
    assert {order.side for order in orders} == {"B", "S"}
    assert all(order.price_e4 > 0 and order.price_e4 % 100 == 0 for order in orders)
    assert all(order.qty > 0 and order.qty % 100 == 0 for order in orders)
    times = [order.ts_ms for order in orders]
    assert [OPENING_MS, *times] == sorted([OPENING_MS, *times])
    symbols = {order.symbol for order in orders}
    assert len(symbols) == 5
    for symbol in symbols:
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


def test_flow_trades_and_cancels_and_leaves_orders_resting(flow_payloads: FlowPayloads) -> None:
    matching = Matching()
    matching.apply(flow_payloads(9, 20_000))
    counted = matching.counters()
    assert counted["refused"] == 0
    assert counted["trades"] > 1_000
    assert counted["cancels"] > 3 * counted["cancels_unknown"] > 0
    assert counted["resting_orders"] > 100
