from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.keys import memory as key_index
from sequencer.keys.memory import KeyIndex, hash_keys, merge_pieces, piece_of


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
