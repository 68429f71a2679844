"""Faults planted in a set of rows are found with their exact ids, and nothing else is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from chain_verifier.findings import Finding, Kind
from tests.integration.chain_verifier.planted_faults import chain_of, head_of, id_of, plant

if TYPE_CHECKING:
    from collections.abc import Callable

    from chain_verifier.verification import ScannedSource

    Examine = Callable[..., ScannedSource]

ROWS = chain_of(random.Random(1), 60)
HEAD = head_of(ROWS)


def finding(kind: Kind, **fields: Any) -> Finding:
    return Finding(kind=kind, source="rows", **fields)


@pytest.mark.parametrize("bits", [2, 6, 40])
def test_check_with_a_clean_chain_finds_nothing(examine_rows: Examine, bits: int) -> None:
    scanned = examine_rows(ROWS, HEAD, bits=bits)
    assert scanned.findings.total == 0
    assert scanned.rows == len(ROWS)


def test_check_with_rows_in_any_order_finds_nothing(examine_rows: Examine) -> None:
    shuffled = random.Random(2).sample(ROWS, len(ROWS))
    assert examine_rows(shuffled, HEAD).findings.total == 0


def test_check_with_no_rows_finds_nothing_at_head_0_and_a_gap_at_another(
    examine_rows: Examine,
) -> None:
    assert examine_rows([], 0).findings.total == 0
    assert examine_rows([], None).findings.total == 0
    (gap,) = examine_rows([], 9).findings.kept
    assert gap == finding(Kind.GAP, after_id=0, until_id=9)


def test_check_with_a_start_looks_only_behind_it(examine_rows: Examine) -> None:
    start = ROWS[20].id
    damaged = [*ROWS[:3], *ROWS[5:]]
    scanned = examine_rows(damaged, HEAD, start=start)
    assert scanned.findings.total == 0
    assert scanned.rows == len(ROWS) - 21


@pytest.mark.parametrize("seed", range(4))
def test_check_with_random_faults_finds_these_and_no_others(
    examine_rows: Examine, seed: int
) -> None:
    rng = random.Random(seed)
    planted = plant(rng, chain_of(rng, 800), "rows", faults=(20, 60))
    scanned = examine_rows(planted.rows, head_of(planted.rows), bits=rng.choice([3, 5, 7]))
    assert sorted(scanned.findings.kept, key=str) == sorted(planted.expected, key=str)
    assert scanned.findings.total == len(planted.expected)


def edges(rows: list[Any], bits: int) -> list[int]:
    """The first row, one in the middle of a bucket, the last and the first of one, the last row."""
    numbers = [row.id >> bits for row in rows]
    firsts = [i for i in range(5, len(rows)) if numbers[i] != numbers[i - 1]]
    return [0, firsts[1] + 1, firsts[3] - 1, firsts[5], len(rows) - 1]


def test_check_with_rows_missing_at_edges_names_each(examine_rows: Examine) -> None:
    at = edges(ROWS, 4)
    rows = [row for index, row in enumerate(ROWS) if index not in at]
    expected = [
        finding(Kind.GAP, after_id=ROWS[index].pid, until_id=ROWS[index].id) for index in at
    ]
    assert list(examine_rows(rows, HEAD).findings.kept) == expected


def test_check_with_rows_twice_at_edges_names_each(examine_rows: Examine) -> None:
    again = [ROWS[index] for index in edges(ROWS, 4)]
    expected = [finding(Kind.DUPLICATE, id=row.id, count=2) for row in again]
    assert list(examine_rows([*ROWS, *again], HEAD).findings.kept) == expected


@pytest.mark.merge
def test_check_with_forks_at_edges_names_both_rows_of_each(examine_rows: Examine) -> None:
    forked = [ROWS[index] for index in edges(ROWS, 4)[1:]]
    others = [replace(row, id=id_of(row) - 1) for row in forked]
    expected = {
        finding(Kind.FORK, pid=row.pid, ids=(other.id, row.id))
        for row, other in zip(forked, others, strict=True)
    }
    assert set(examine_rows([*ROWS, *others], HEAD).findings.kept) == expected


def test_check_with_a_fork_far_behind_its_pid_names_both_rows(examine_rows: Examine) -> None:
    other = replace(ROWS[5], id=id_of(ROWS[50]) + 1)
    expected = finding(Kind.FORK, pid=ROWS[5].pid, ids=(ROWS[5].id, other.id))
    assert examine_rows([*ROWS, other], HEAD).findings.kept == (expected,)


def test_check_with_the_last_rows_missing_and_no_head_known_finds_nothing(
    examine_rows: Examine,
) -> None:
    assert examine_rows(ROWS[:-5], None).findings.total == 0


def test_check_with_null_columns_names_row_and_column(examine_rows: Examine) -> None:
    rows = list(ROWS)
    rows[3] = replace(rows[3], payload=None)
    rows[4] = replace(rows[4], key=None, event_time_ns=None)
    expected = {
        finding(Kind.NULL, id=rows[3].id, pid=rows[3].pid, columns=("payload",)),
        finding(Kind.NULL, id=rows[4].id, pid=rows[4].pid, columns=("key", "event_time_ns")),
    }
    assert set(examine_rows(rows, HEAD).findings.kept) == expected


def test_check_with_null_ids_names_the_rows_and_what_they_leave_open(
    examine_rows: Examine,
) -> None:
    rows = list(ROWS)
    rows[9] = replace(rows[9], id=None)
    rows[20] = replace(rows[20], pid=None)
    found = set(examine_rows(rows, HEAD).findings.kept)
    assert found == {
        finding(Kind.NULL, id=None, pid=rows[9].pid, columns=("id",)),
        finding(Kind.NULL, id=rows[20].id, pid=None, columns=("pid",)),
        finding(Kind.GAP, after_id=ROWS[8].id, until_id=ROWS[9].id),
        finding(Kind.GAP, after_id=ROWS[19].id, until_id=ROWS[20].id),
    }


def test_check_with_rows_of_another_chain_names_them(examine_rows: Examine) -> None:
    foreign = replace(ROWS[7], chain_id=8)
    expected = finding(Kind.FOREIGN_CHAIN, id=foreign.id, pid=foreign.pid, chain_id=8)
    assert examine_rows([*ROWS, foreign], HEAD).findings.kept == (expected,)


def test_check_with_rows_behind_the_head_counts_them(examine_rows: Examine) -> None:
    scanned = examine_rows(ROWS, ROWS[-3].id)
    assert scanned.findings.total == 0
    assert (scanned.rows_beyond, scanned.beyond_id) == (2, ROWS[-1].id)
