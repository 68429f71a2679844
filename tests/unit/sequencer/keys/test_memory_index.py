from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.keys import memory as key_index
from sequencer.keys.memory import KeyFilter, KeyIndex, hash_keys, merge_pieces, page_of, piece_of

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "PIECE_ROWS", 16)


def tidy(index: KeyIndex) -> None:
    while pieces := index.due_merge():
        index.replace(merge_pieces(pieces))
    while index.forget_old() is not None:
        pass


def found(index: KeyIndex, hashes: list[int]) -> set[tuple[int, int]]:
    return set(index.find(hashes))


def test_hashes_with_another_salt_differ() -> None:
    assert hash_keys(["a", "b"], 1) == hash_keys(["a", "b"], 1)
    assert hash_keys(["a"], 1) != hash_keys(["a"], 2)


def test_find_in_an_empty_index_finds_nothing() -> None:
    assert KeyIndex(100, after_id=0).find([1, 2]) == []


def test_two_rows_with_one_hash_are_both_found() -> None:
    index = KeyIndex(1_000, after_id=0)
    index.add([7, 7], [1, 2])
    index.add([7], [3])
    assert found(index, [7]) == {(7, 1), (7, 2), (7, 3)}
    index.add(list(range(100, 120)), list(range(4, 24)))  # becomes a piece
    assert found(index, [7]) == {(7, 1), (7, 2), (7, 3)}


def test_full_page_holds_what_the_index_knows() -> None:
    index = KeyIndex(1_000, after_id=5)
    ids = [*range(10, 20), *range(30, 37)]
    page = index.add([n * 3 for n in ids], ids)
    assert page is not None
    assert (page.after_id, page.until_id) == (5, 36)
    assert len(page.spans) == 2 * 16
    read_back = KeyIndex(1_000, after_id=5)
    read_back.install(piece_of(page))
    assert found(read_back, [n * 3 for n in ids]) == {(n * 3, n) for n in ids}


def test_forgetting_keeps_at_least_the_window() -> None:
    index = KeyIndex(100, after_id=0)
    for start in range(1, 1_001, 10):
        ids = list(range(start, start + 10))
        index.add(ids, ids)
        tidy(index)
        assert index.rows >= min(100, ids[-1])
        assert index.rows <= 100 + 50
    assert found(index, list(range(901, 1_001))) == {(n, n) for n in range(901, 1_001)}
    assert index.find([1]) == []
    assert 0 < index.forgotten_until <= 900


def spread(numbers: Iterable[int]) -> list[int]:
    """Hashes as keys have them, one of each number."""
    return hash_keys(map(str, numbers), 1)


def test_filter_knows_every_row_and_doubts_few_others() -> None:
    filter_ = KeyFilter(2_000)
    for first in (1, 1_001):
        ids = np.arange(first, first + 1_000)
        hashes = np.array(spread(range(first, first + 1_000)), np.uint64)
        page = page_of(hashes, ids, after_id=first - 1, until_id=first + 999)
        assert filter_.has_room(piece_of(page))
        filter_.add(piece_of(page))
    assert not filter_.has_room(piece_of(page))
    assert filter_.until_id == 2_000
    assert filter_.may_have(np.array(spread(range(1, 2_001)), np.uint64)).all()
    others = filter_.may_have(np.array(spread(range(10_000, 20_000)), np.uint64))
    assert 0 < others.sum() < 1_000


def test_filters_are_dropped_with_the_last_of_their_rows_and_not_before() -> None:
    index = KeyIndex(100, after_id=0)
    for start in range(1, 2_001, 10):
        ids = list(range(start, start + 10))
        index.add(spread(ids), ids)
        tidy(index)
        kept = range(index.forgotten_until + 1, ids[-1] + 1)
        assert found(index, spread(kept)) == set(zip(spread(kept), kept, strict=True))
        assert len(index._filters) <= 3
    assert index.find(spread(range(1, index.forgotten_until + 1))) == []


def test_ids_spread_beyond_32_bits_are_found() -> None:
    index = KeyIndex(1_000, after_id=0)
    ids = [n << 33 for n in range(1, 20)]
    index.add(list(range(19)), ids)
    assert found(index, [3]) == {(3, ids[3])}


@given(
    batches=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=25), max_size=40),
    gaps=st.lists(st.integers(1, 5), min_size=40, max_size=40),
)
def test_index_agrees_with_a_plain_list(batches: list[list[int]], gaps: list[int]) -> None:
    index = KeyIndex(10_000, after_id=0)
    rows: list[tuple[int, int]] = []
    last_id = 0
    for hashes, gap in zip(batches, gaps, strict=False):
        ids = list(range(last_id + gap, last_id + gap + len(hashes)))
        last_id = ids[-1]
        index.add(hashes, ids)
        rows += zip(hashes, ids, strict=True)
        tidy(index)
    wanted = list(range(0, 61, 7))
    assert found(index, wanted) == {row for row in rows if row[0] in wanted}
    assert index.rows == len(rows)
