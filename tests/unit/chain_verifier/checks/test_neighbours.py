"""Findings of neighbouring rows are one finding, with its first and last id; all others stay."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chain_verifier.checks.neighbours import collected, gathered, in_ranges, ranged
from chain_verifier.config import FINDINGS_MAX, JournalSource, VerifyRequest
from chain_verifier.findings import KINDS_OF_BATCHES, KINDS_OF_ROWS, Finding, Kind
from chain_verifier.local.verify import verify_locally
from tests.integration.chain_verifier.planted_faults import (
    CHAIN_ID,
    Row,
    chain_of,
    head_of,
    write_journal,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from chain_verifier.report import Report

MANY = 5_000
ROWS = chain_of(random.Random(21), MANY)
HEAD = head_of(ROWS)


def lacking(row_id: int, pid: int, **fields: Any) -> Finding:
    given = {"kind": Kind.LACKING, "source": "a", "against": "b"} | fields
    return Finding(id=row_id, pid=pid, **given)


def ranges_of(*findings: Finding) -> list[tuple[int | None, int | None, int | None]]:
    return [(one.id, one.last_id, one.rows) for one in in_ranges(findings)]


def test_rows_that_name_each_other_are_one_finding_however_far_their_ids_are_apart() -> None:
    assert ranges_of(lacking(5, 1), lacking(900, 5), lacking(901, 900)) == [(5, 901, 3)]


def test_rows_with_another_row_between_them_stay_two_findings() -> None:
    assert ranges_of(lacking(5, 1), lacking(6, 5), lacking(8, 7), lacking(9, 8)) == [
        (5, 6, 2), (8, 9, 2),
    ]  # fmt: skip


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
    found = collected(lambda: (batch(Kind.SEAL_MISMATCH, *each) for each in ends))
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


def test_row_without_an_id_is_nobodys_neighbour() -> None:
    nulls = [Finding(kind=Kind.NULL, source="a", columns=("id", "pid")) for _ in range(2)]
    assert list(in_ranges(nulls)) == nulls


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
    def look() -> Iterable[Finding]:
        return (lacking(number, number - 1) for number in range(1, MANY) if number != 777)

    found = collected(look)
    assert found.counts == {"lacking": 2}
    assert found.row_counts == {"lacking": MANY - 2}
    assert [(one.id, one.last_id, one.rows) for one in found.kept] == [
        (1, 776, 776), (778, MANY - 1, MANY - 778),
    ]  # fmt: skip
    assert found.wholes == (look,)
    assert found == replace(gathered(look()), wholes=(look,))


def test_very_many_ranges_are_counted_and_few_are_kept() -> None:
    apart = FINDINGS_MAX + 5
    found = collected(lambda: (lacking(2 * number, 2 * number - 1) for number in range(apart)))
    assert (found.total, found.total_by_row, len(found.kept)) == (apart, apart, FINDINGS_MAX)


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


@pytest.fixture
def compared(tmp_path: Path) -> Any:
    """Verifies journals without Spark, each compared with the first."""

    def run(*sources: Sequence[Row], **options: Any) -> Report:
        paths = [write_journal(tmp_path / f"{number}", rows) for number, rows in enumerate(sources)]
        journals = tuple(JournalSource(path=str(path)) for path in paths)
        given = {"bucket_bits": 8, "head": HEAD} | options
        return verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=journals, **given))

    return run


def spans_of(report: Report, kind: Kind) -> list[tuple[int | None, int | None, int | None]]:
    return [(one.id, one.last_id, one.rows) for one in report.findings if one.kind is kind]


def test_source_that_was_wiped_is_one_finding_of_all_its_rows(compared: Any) -> None:
    report = compared(ROWS, [])
    assert spans_of(report, Kind.LACKING) == [(ROWS[0].id, HEAD, MANY)]
    assert report.counts == {"gap": 1, "lacking": 1}
    assert report.row_counts == {"gap": 1, "lacking": MANY}
    (comparison,) = report.comparisons
    assert (comparison.counts, comparison.row_counts) == ({"lacking": 1}, {"lacking": MANY})
    told = [line for line in report.lines() if "lacking" in line]
    assert told[0].startswith(f"  {comparison.source} against {comparison.against}: 5,000 lacking")
    assert told[1] == (
        f"    5,000 rows from {ROWS[0].id} to {HEAD} are lacking, {comparison.against} has them"
    )
    assert len(told) == 2
    (found,) = (one for one in report.to_dict()["findings"] if one["kind"] == "lacking")
    assert (found["id"], found["last_id"], found["rows"]) == (ROWS[0].id, HEAD, MANY)
    assert "pid" not in found


def test_row_that_is_left_in_the_middle_of_a_wiped_source_splits_the_finding(
    compared: Any,
) -> None:
    report = compared(ROWS, [ROWS[2_000]])
    assert spans_of(report, Kind.LACKING) == [
        (ROWS[0].id, ROWS[1_999].id, 2_000), (ROWS[2_001].id, HEAD, MANY - 2_001),
    ]  # fmt: skip


def test_rows_that_differ_lack_and_are_too_many_are_ranges_of_their_own(compared: Any) -> None:
    other = [
        *(replace(row, key="x") for row in ROWS[:10]),
        *(replace(row, payload=b"changed") for row in ROWS[10:30]),
        *ROWS[40:],
    ]
    report = compared(ROWS, other)
    kinds = (Kind.DIFFERING, Kind.LACKING)
    found = {kind: spans_of(report, kind) for kind in kinds}
    assert found == {
        Kind.DIFFERING: [(ROWS[0].id, ROWS[9].id, 10), (ROWS[10].id, ROWS[29].id, 20)],
        Kind.LACKING: [(ROWS[30].id, ROWS[39].id, 10)],
    }
    assert spans_of(compared(other, ROWS), Kind.SURPLUS) == found[Kind.LACKING]


def test_journal_that_was_written_twice_is_one_finding_of_duplicates(compared: Any) -> None:
    report = compared([*ROWS, *ROWS])
    assert spans_of(report, Kind.DUPLICATE) == [(ROWS[0].id, HEAD, MANY)]
    (one,) = (one for one in report.findings if one.kind is Kind.DUPLICATE)
    assert one.count == 2


def test_neighbours_are_found_in_whatever_order_a_file_holds_them(compared: Any) -> None:
    """Rows without a key, of another chain and after the head, in a journal without order."""
    keyless = [replace(row, key=None) if 10 <= at < 30 else row for at, row in enumerate(ROWS)]
    others = [replace(row, chain_id=9) for row in ROWS[:25]]
    rows = [*keyless, *others]
    random.Random(4).shuffle(rows)
    report = compared(rows, head=ROWS[-6].id)
    assert spans_of(report, Kind.NULL) == [(ROWS[10].id, ROWS[29].id, 20)]
    assert spans_of(report, Kind.FOREIGN_CHAIN) == [(ROWS[0].id, ROWS[24].id, 25)]
    assert spans_of(report, Kind.BEYOND_HEAD) == [(ROWS[-5].id, HEAD, 5)]
    (beyond,) = (one for one in report.findings if one.kind is Kind.BEYOND_HEAD)
    assert (beyond.pid, beyond.until_id) == (ROWS[-6].id, ROWS[-6].id)
