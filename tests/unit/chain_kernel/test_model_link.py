"""The link rule: two ways to ask it, one answer."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain_kernel.limits import ID_MAX
from chain_kernel.model import Event, first_break, is_linked


def rows(*ids: tuple[int, int]) -> list[Event]:
    """Return rows of (pid, id)."""
    return [Event(id_, pid, "k", 0, b"") for pid, id_ in ids]


@settings(deadline=None, print_blob=True)
@given(after=st.integers(0, 6), pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_both_rules_with_any_small_rows_agree(after: int, pairs: list[tuple[int, int]]) -> None:
    events = rows(*pairs)
    assert is_linked(after, events) is (first_break(after, events) is None)


@settings(deadline=None, print_blob=True)
@given(
    ids=st.lists(st.integers(0, ID_MAX), min_size=2, max_size=40, unique=True).map(sorted),
    data=st.data(),
)
def test_chain_without_one_row_is_broken_there(ids: list[int], data: st.DataObject) -> None:
    events = rows(*pairwise(ids))
    assert is_linked(ids[0], events)
    assert first_break(ids[0], events) is None
    lost = data.draw(st.integers(0, len(events) - 1))
    rest = events[:lost] + events[lost + 1 :]
    assert first_break(ids[0], rest) == (lost if lost < len(rest) else None)
    assert is_linked(ids[0], rest) is (lost == len(rest))


@pytest.mark.parametrize(
    ("pairs", "index"),
    [
        ([(4, 6)], 0),  # hangs on another row
        ([(6, 7)], 0),
        ([(5, 5)], 0),  # id = pid
        ([(5, 4)], 0),  # id < pid
        ([(5, 6), (5, 7)], 1),  # fork
        ([(5, 6), (6, 6)], 1),
        ([(5, 6), (6, 9), (9, 8)], 2),
        ([(5, 7), (7, 6), (6, 8)], 1),
        ([(5, 6), (7, 8)], 1),  # gap
        ([(5, 6), (6, 7), (5, 6)], 2),  # duplicate
    ],
)
def test_first_break_is_named(pairs: list[tuple[int, int]], index: int) -> None:
    assert first_break(5, rows(*pairs)) == index
    assert not is_linked(5, rows(*pairs))
