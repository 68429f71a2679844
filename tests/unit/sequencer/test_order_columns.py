"""Columns of several calls: the same whether they are joined or made again."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.errors import OrderError
from sequencer.order import Order, OrdersIn, columns_from, columns_of, joined

ORDERS = st.builds(
    Order,
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8),
    st.binary(max_size=8),
    st.none() | st.integers(-(2**63), 2**63 - 1),
)


@given(st.lists(st.lists(ORDERS, min_size=1, max_size=20), min_size=1, max_size=6))
def test_joined_columns_are_those_of_all_orders(calls: list[list[Order]]) -> None:
    everything = [order for call in calls for order in call]
    assert joined([columns_of(call) for call in calls]) == columns_of(everything)


@given(st.lists(ORDERS, min_size=1, max_size=20))
def test_columns_that_are_given_are_those_of_their_orders(orders: list[Order]) -> None:
    keys, payloads, times = (
        [order.key for order in orders],
        [order.payload for order in orders],
        [order.event_time_ns for order in orders],
    )
    columns = columns_from(keys, payloads, times)
    assert columns == columns_of(orders)
    held = OrdersIn(columns)
    assert (list(held), held[-1], held[1:], len(held)) == (
        orders,
        orders[-1],
        orders[1:],
        len(orders),
    )
    arrow = pa.array(keys), pa.chunked_array([payloads], pa.binary()), pa.array(times, pa.int64())
    assert columns_from(*arrow) == columns


def test_times_of_arrow_are_nanoseconds() -> None:
    times = pa.array([1_000, None], pa.timestamp("ns"))
    assert columns_from(["a", "b"], [b"", b""], times).times_ns == [1_000, None]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((["a", "b"], [b""], None), "payloads was 1, expected one for each of 2 keys"),
        ((["a"], [b""], [1, 2]), "event_times_ns was 2, expected one for each of 1 keys"),
        ((["a", ""], [b"", b""], None), "key was '0 bytes'"),
        ((["a", "b"], [b"", "x"], None), "payload was 'str', expected bytes"),
        ((["a", "b"], [b"", b""], [1, 2**63]), "event_time_ns was 9223372036854775808"),
    ],
)
def test_bad_columns_are_refused_by_the_field(columns: Any, message: str) -> None:
    with pytest.raises(OrderError, match=message):
        columns_from(*columns)
