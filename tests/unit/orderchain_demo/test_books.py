"""The demo's second version of its books: the replay names the first large order of each."""

import msgspec

from chain_kernel.model import Event
from chain_verifier.dataframe.two_folds import Rows, run_two_folds
from orderchain_demo.books import BOOKS, QUANTITY_MAX, SECOND, symbol_of
from orderchain_demo.flow import FlowOrder, order_flow


def as_event(at: int, order: FlowOrder) -> Event:
    row = {name: str(value) for name, value in order._asdict().items()}
    return Event(at, at - 1, f"demo#{at}", 0, msgspec.msgpack.encode(row))


def test_second_version_differs_first_on_the_first_large_order_of_each_symbol() -> None:
    flow = list(order_flow(7, 1_500))
    events = [as_event(at, order) for at, order in enumerate(flow, 1)]
    first: dict[str, int] = {}
    for at, order in enumerate(flow, 1):
        if order.qty > QUANTITY_MAX:
            first.setdefault(order.symbol, at)
    orders = {name: [each for each in events if symbol_of(each) == name] for name in first}
    rows = [Rows(name, [each.id for each in of], (of, of)) for name, of in orders.items()]
    results = run_two_folds((BOOKS, SECOND), rows, 1)
    found = {each.group: each.id for each in results if each.kind == "diverges"}
    assert found == first
    assert len(found) == 5
