from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.keys import memory as key_index
from sequencer.keys.memory import KeyIndex, KeyTable, are_distinct, hash_keys


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "PIECE_ROWS", 16)


def hashed(numbers: list[int]) -> key_index.Hashes:
    return np.array(numbers, np.uint64)


def test_full_page_holds_what_the_index_knows() -> None:
    index = KeyIndex(1_000, after_id=5)
    ids = [*range(10, 20), *range(30, 37)]
    page = index.add(hashed([n * 3 for n in ids]), ids)
    assert page is not None
    assert (page.after_id, page.until_id) == (5, 36)
    assert len(page.spans) == 2 * 16
    read_back = KeyIndex(1_000, after_id=5)
    read_back.install(page)
    assert [read_back.find(hashed([n * 3])) for n in ids] == [[n] for n in ids]


def test_rows_beyond_the_window_are_forgotten_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_index, "_AT_ONCE", 7)
    index = KeyIndex(100, after_id=0)
    hashes = hash_keys(list(map(str, range(2_000))), 1)
    for start in range(1, 2_001, 10):
        index.add(hashes[start - 1 : start + 9], range(start, start + 10))
        until = start + 9
        assert index.forgotten_until == max(until - 100, 0)
        assert sorted(index.find(hashes[:until])) == list(range(max(until - 99, 1), until + 1))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_table_of_a_young_chain_takes_little_memory_and_gives_it_back() -> None:
    before = resident_bytes()
    tables = [KeyTable(1_000_000) for _ in range(20)]
    for table in tables:
        table.add(hash_keys(list(map(str, range(100))), 1), np.arange(1, 101))
    assert resident_bytes() - before < 20 * 2**20
    del table, tables
    assert resident_bytes() - before < 2 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@given(
    batches=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=25), max_size=40),
    gaps=st.lists(st.integers(1, 5), min_size=40, max_size=40),
    factor=st.sampled_from([1, 2**32 + 1, 0x9E3779B97F4A7C15]),
    window=st.sampled_from([3, 30, 10_000]),
)
def test_index_agrees_with_a_plain_list(
    batches: list[list[int]], gaps: list[int], factor: int, window: int
) -> None:
    index = KeyIndex(window, after_id=0)
    rows: list[tuple[int, int]] = []
    last_id = 0
    for numbers, gap in zip(batches, gaps, strict=False):
        ids = list(range(last_id + gap, last_id + gap + len(numbers)))
        last_id = ids[-1]
        hashes = [number * factor % 2**64 for number in numbers]
        index.add(hashed(hashes), ids)
        rows += zip(hashes, ids, strict=True)
    for wanted in (number * factor % 2**64 for number in range(0, 61, 7)):
        expected = [row_id for hash_, row_id in rows[-window:] if hash_ == wanted]
        assert sorted(index.find(hashed([wanted]))) == expected
    assert index.rows == min(len(rows), window)


def test_a_row_is_found_after_its_number_came_round() -> None:
    table = KeyTable(50)
    table._last = 2**32 - 30
    hashes = hash_keys(list(map(str, range(200))), 1)
    for start in range(0, 200, 8):
        table.add(hashes[start : start + 8], np.arange(start + 1, start + 9))
    assert sorted(table.find(hashes)) == list(range(151, 201))


@given(st.lists(st.integers(0, 40), max_size=12), st.lists(st.integers(0, 40), max_size=12))
def test_hashes_are_distinct_if_no_two_are_equal(some: list[int], others: list[int]) -> None:
    expected = len({*some, *others}) == len(some) + len(others)
    assert are_distinct(hashed(some), hashed(others)) == expected
