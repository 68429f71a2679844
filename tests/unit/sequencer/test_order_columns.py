"""Columns of several calls: the same whether they are joined or made again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sequencer.order import Order, columns_of, joined

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
