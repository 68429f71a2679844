"""Findings of neighbouring rows are one finding, with its first and last id; all others stay."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chain_verifier.checks.neighbours import first_of_each_kind, gathered, in_ranges, ranged
from chain_verifier.findings import KINDS_OF_BATCHES, KINDS_OF_ROWS, Finding, Kind

MANY = 5_000


def lacking(row_id: int, pid: int, **fields: Any) -> Finding:
    given = {"kind": Kind.LACKING, "source": "a", "against": "b"} | fields
    return Finding(id=row_id, pid=pid, **given)


def ranges_of(*findings: Finding) -> list[tuple[int | None, int | None, int | None]]:
    return [(one.id, one.last_id, one.rows) for one in in_ranges(findings)]


def test_finding_of_one_row_looks_as_if_there_were_no_ranges() -> None:
    (one,) = in_ranges([lacking(5, 1)])
    assert one == Finding(kind=Kind.LACKING, source="a", against="b", id=5)
    assert one.text == "row 5 is lacking, b has it"


@pytest.mark.parametrize(
    "other",
    [
        {"kind": Kind.SURPLUS}, {"source": "c"}, {"against": "c"}, {"columns": ("key",)},
        {"chain_id": 9}, {"until_id": 8}, {"count": 3},
    ],
)  # fmt: skip
def test_neighbours_with_another_kind_source_or_fault_never_become_one(
    other: dict[str, Any],
) -> None:
    found = ranges_of(lacking(5, 1), lacking(6, 5, **other))
    assert sorted(found) == [(5, None, None), (6, None, None)]


def test_findings_that_are_not_of_rows_are_passed_on_as_they_are() -> None:
    others = [
        Finding(kind=kind, source="a", id=number, pid=number - 1)
        for kind in Kind
        if kind not in KINDS_OF_ROWS | KINDS_OF_BATCHES
        for number in (5, 6)
    ]
    assert list(in_ranges(others)) == others
    assert [ranged(one, None, 1) for one in others] == others


def batch(kind: Kind, pid: int, until_id: int, **counts: Any) -> Finding:
    return Finding(
        kind=kind, source="a", id=pid + 1, until_id=until_id, pid=pid, **counts,
    )  # fmt: skip


def test_neighbouring_batches_that_were_changed_are_one_finding() -> None:
    ends = [(0, 10), (10, 25), (25, 30), (40, 50)]
    found = gathered(batch(Kind.SEAL_MISMATCH, *each) for each in ends)
    assert found.kept == (
        Finding(kind=Kind.SEAL_MISMATCH, source="a", id=1, until_id=30, batches=3),
        Finding(kind=Kind.SEAL_MISMATCH, source="a", id=41, until_id=50),
    )
    assert found.kept[0].text == (
        "seal mismatch: rows 1 to 30, 3 batches, are not those that were sealed"
    )
    assert (found.counts, found.row_counts) == ({"seal_mismatch": 2}, {"seal_mismatch": 4})


def test_neighbouring_batches_without_a_row_are_one_finding_with_all_that_were_committed() -> None:
    """One that lacks only some of its rows stays by itself: its figures say how many."""
    lost = {"count": 0, "expected_count": 10}
    cut = batch(Kind.BATCH_COUNT, 40, 50, count=4, expected_count=10)
    ends = [(10, 20), (20, 30), (30, 40)]
    names = ("id", "until_id", "batches", "count", "expected_count")
    found = list(in_ranges([*(batch(Kind.BATCH_COUNT, *each, **lost) for each in ends), cut,
                            replace(cut, id=51, pid=50, until_id=60)]))  # fmt: skip
    assert [tuple(getattr(one, name) for name in names) for one in found] == [
        (11, 40, 3, 0, 30), (41, 50, None, 4, 10), (51, 60, None, 4, 10),
    ]  # fmt: skip
    assert found[0].text == "3 batches from 11 to 40 have no rows, committed were 30"


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_ranges_together_hold_each_row_once_and_none_touches_the_next(holes: list[bool]) -> None:
    """Over chains of consecutive rows with any holes: what a reader could count by hand."""
    lost = [number for number, is_lost in enumerate(holes, 1) if is_lost]
    found = list(in_ranges(lacking(number, number - 1) for number in lost))
    spans = [(one.id or 0, one.last_id or one.id or 0, one.rows or 1) for one in found]
    assert [number for first, last, _ in spans for number in range(first, last + 1)] == lost
    assert all(rows == last - first + 1 for first, last, rows in spans)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(spans))


def test_counts_are_of_findings_and_of_rows_and_all_rows_can_still_be_had() -> None:
    every = tuple(lacking(number, number - 1) for number in range(1, MANY) if number != 777)
    found = gathered(every)
    assert found.counts == {"lacking": 2}
    assert found.row_counts == {"lacking": MANY - 2}
    assert [(one.id, one.last_id, one.rows) for one in found.kept] == [
        (1, 776, 776), (778, MANY - 1, MANY - 778),
    ]  # fmt: skip
    assert found.wholes == (every,)


def test_first_of_each_kind_is_named_alone() -> None:
    many = [lacking(5, 1), lacking(6, 5), lacking(9, 8, kind=Kind.SURPLUS)]
    found = first_of_each_kind(many)
    assert [(one.kind, one.id, one.rows) for one in found.kept] == [
        (Kind.LACKING, 5, None), (Kind.SURPLUS, 9, None),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(KINDS_OF_ROWS))
def test_range_of_every_kind_names_its_ends_and_how_many_rows(kind: Kind) -> None:
    one = Finding(
        kind=kind, source="s", against="t", id=12_345, last_id=67_890, rows=400, pid=12_000,
        columns=("key",), until_id=99, chain_id=4, count=2,
    )  # fmt: skip
    assert "400 rows from 12345" in one.text
    assert "to 67890" in one.text
    assert "12,345" in one.text_with("{:,}".format)
    assert "to 67,890" in one.text_with("{:,}".format)
