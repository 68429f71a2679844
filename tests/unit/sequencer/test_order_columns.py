"""Columns of several calls: the same whether they are joined or made again."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.assembly import columns_of_entries
from sequencer.order import Order, columns_of, joined
from sequencer.submission import Entry

ORDERS = st.builds(
    Order,
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8),
    st.binary(max_size=8),
    st.none() | st.integers(-(2**63), 2**63 - 1),
)


def entry(orders: list[Order], *, is_taken_apart: bool) -> Entry:
    columns = columns_of(orders) if is_taken_apart else None
    return Entry(orders, 0, Mock(), columns=columns)


@given(st.lists(st.lists(ORDERS, min_size=1, max_size=20), min_size=1, max_size=6))
def test_joined_columns_are_those_of_all_orders(calls: list[list[Order]]) -> None:
    everything = [order for call in calls for order in call]
    assert joined([columns_of(call) for call in calls]) == columns_of(everything)


@pytest.mark.parametrize("rows", [1, 7, 8, 40])
@pytest.mark.parametrize("taken_apart", [(True, True), (True, False), (False, False)])
def test_entries_make_the_same_batch_whatever_was_looked_at_before(
    rows: int, taken_apart: tuple[bool, bool]
) -> None:
    calls = [[Order(f"{name}{row}", b"pay", row) for row in range(rows)] for name in "ab"]
    entries = [
        entry(call, is_taken_apart=is_taken_apart)
        for call, is_taken_apart in zip(calls, taken_apart, strict=True)
    ]
    assert columns_of_entries(entries) == columns_of([*calls[0], *calls[1]])


def test_one_entry_is_taken_as_it_is() -> None:
    alone = entry([Order(f"a{row}", b"pay") for row in range(8)], is_taken_apart=True)
    assert columns_of_entries([alone]) is alone.columns
