from __future__ import annotations

from collections.abc import Iterable

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


def spread(numbers: Iterable[int]) -> list[int]:
    """Hashes as keys have them, one of each number."""
    return hash_keys(map(str, numbers), 1)


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
