"""Every kind of fault, planted in a chain of six rows: 10, 20, ... 60."""

from __future__ import annotations

import pytest

from chain_verifier.checks.buckets import Link, find_faults
from chain_verifier.findings import Finding, Kind

CHAIN = [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50), (50, 60)]


def faults_of(rows: list[tuple[int, int]], start: int = 0, head: int | None = 60) -> list[Finding]:
    return find_faults("s", [Link(pid, row_id, row_id) for pid, row_id in rows], start, head)


def gap(after_id: int, until_id: int) -> Finding:
    return Finding(kind=Kind.GAP, source="s", after_id=after_id, until_id=until_id)


def orphan(row_id: int, pid: int) -> Finding:
    return Finding(kind=Kind.ORPHAN, source="s", id=row_id, pid=pid)


def fork(pid: int, *ids: int) -> Finding:
    return Finding(kind=Kind.FORK, source="s", pid=pid, ids=ids)


def test_faults_with_a_whole_chain_are_none() -> None:
    assert faults_of(CHAIN) == []
    assert faults_of(CHAIN, head=None) == []
    assert faults_of(CHAIN[2:], start=20) == []


def test_faults_with_an_empty_chain_are_none() -> None:
    assert faults_of([], head=0) == []
    assert faults_of([], head=None) == []
    assert faults_of([], start=20, head=20) == []


def test_faults_with_all_rows_missing_is_one_gap_to_the_head() -> None:
    assert faults_of([]) == [gap(0, 60)]


@pytest.mark.parametrize("index", range(6))
def test_faults_with_one_row_missing_names_it(index: int) -> None:
    pid, row_id = CHAIN[index]
    assert faults_of(CHAIN[:index] + CHAIN[index + 1 :]) == [gap(pid, row_id)]


def test_faults_with_the_last_row_missing_and_no_head_known_are_none() -> None:
    assert faults_of(CHAIN[:-1], head=None) == []


def test_faults_with_three_rows_missing_names_the_last_of_them() -> None:
    assert faults_of(CHAIN[:1] + CHAIN[4:]) == [gap(10, 40)]


def test_faults_with_several_gaps_names_each() -> None:
    assert faults_of([CHAIN[1], CHAIN[3], CHAIN[4]]) == [gap(0, 10), gap(20, 30), gap(50, 60)]


@pytest.mark.parametrize("index", range(6))
def test_faults_with_a_row_twice_names_it(index: int) -> None:
    expected = Finding(
        kind=Kind.DUPLICATE, source="s", id=CHAIN[index][1], pid=CHAIN[index][0], count=2
    )
    assert faults_of([*CHAIN, CHAIN[index]]) == [expected]


def test_faults_with_two_rows_of_one_pid_is_a_fork() -> None:
    assert faults_of([*CHAIN, (20, 35)]) == [fork(20, 30, 35)]


def test_faults_with_a_branch_of_several_rows_is_one_fork() -> None:
    assert faults_of([*CHAIN, (20, 32), (32, 34), (34, 36)]) == [fork(20, 30, 32)]


def test_faults_with_two_first_rows_is_a_second_root() -> None:
    expected = Finding(kind=Kind.SECOND_ROOT, source="s", pid=0, ids=(10, 45))
    assert faults_of([*CHAIN, (0, 45)]) == [expected]


def test_faults_with_a_row_that_names_no_row_is_an_orphan() -> None:
    assert faults_of([*CHAIN, (34, 35)]) == [orphan(35, 34)]


def test_faults_with_an_orphan_beside_a_gap_tells_them_apart() -> None:
    # 20 is missing; 30 leads on to the head, 25 leads nowhere, so the chain went by 30.
    rows = [*CHAIN[:1], *CHAIN[2:], (24, 25)]
    assert faults_of(rows) == [gap(10, 20), orphan(25, 24)]


@pytest.mark.parametrize("pid", [30, 35, 60, 99])
def test_faults_with_a_pid_that_is_not_below_the_id_names_the_row_alone(pid: int) -> None:
    rows = [*CHAIN[:2], (pid, 30), *CHAIN[3:]]
    assert faults_of(rows) == [Finding(kind=Kind.PID_NOT_BELOW_ID, source="s", id=30, pid=pid)]


def test_faults_with_a_pid_moved_back_is_a_fork() -> None:
    assert faults_of([*CHAIN[:3], (20, 40), *CHAIN[4:]]) == [fork(20, 30, 40)]


def test_faults_with_one_id_and_two_pids_names_both_faults() -> None:
    duplicate = Finding(kind=Kind.DUPLICATE, source="s", id=50, pid=20, count=2)
    assert faults_of([*CHAIN, (20, 50)]) == [fork(20, 30, 50), duplicate]


def test_faults_with_a_missing_row_of_two_children_names_the_gap_and_the_fork() -> None:
    rows = [*CHAIN[:2], *CHAIN[3:], (30, 45)]
    assert faults_of(rows) == [fork(30, 40, 45), gap(20, 30)]


def test_faults_with_a_path_drawn_together_are_the_same_as_row_by_row() -> None:
    drawn = [Link(0, 10, 20), Link(30, 40, 60)]
    assert find_faults("s", drawn, 0, 60) == faults_of([*CHAIN[:2], *CHAIN[3:]])


def test_faults_with_a_range_not_looked_at_claim_nothing_about_it() -> None:
    links = [Link(0, 10, 10), Link(99, 20, 50, is_damaged=True), Link(50, 60, 60)]
    assert find_faults("s", links, 0, 60) == []
    assert find_faults("s", [*links[:2], Link(45, 60, 60)], 0, 60) == []
