"""Every kind of fault, planted in a chain of six rows: 10, 20, ... 60."""

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


def duplicate(row_id: int, pid: int) -> Finding:
    return Finding(kind=Kind.DUPLICATE, source="s", id=row_id, pid=pid, count=2)


def not_below(row_id: int, pid: int) -> Finding:
    return Finding(kind=Kind.PID_NOT_BELOW_ID, source="s", id=row_id, pid=pid)


def root(*ids: int) -> Finding:
    return Finding(kind=Kind.SECOND_ROOT, source="s", pid=0, ids=ids)


def without(*indexes: int) -> list[tuple[int, int]]:
    return [row for index, row in enumerate(CHAIN) if index not in indexes]


CASES: dict[str, tuple[list[tuple[int, int]], list[Finding]]] = {
    "a whole chain": (CHAIN, []),
    "all rows missing": ([], [gap(0, 60)]),
    **{f"row {at} missing": (without(at), [gap(*CHAIN[at])]) for at in range(6)},
    "three rows missing": (without(1, 2, 3), [gap(10, 40)]),
    "several gaps": (without(0, 2, 5), [gap(0, 10), gap(20, 30), gap(50, 60)]),
    **{
        f"row {at} twice": ([*CHAIN, CHAIN[at]], [duplicate(CHAIN[at][1], CHAIN[at][0])])
        for at in range(6)
    },
    "two rows of one pid": ([*CHAIN, (20, 35)], [fork(20, 30, 35)]),
    "a branch of several rows": ([*CHAIN, (20, 32), (32, 34), (34, 36)], [fork(20, 30, 32)]),
    "two first rows": ([*CHAIN, (0, 45)], [root(10, 45)]),
    "a row that names no row": ([*CHAIN, (34, 35)], [orphan(35, 34)]),
    # 30 leads on to the head, 25 leads nowhere, so the chain went by 30.
    "an orphan beside a gap": ([*without(1), (24, 25)], [gap(10, 20), orphan(25, 24)]),
    **{
        f"a pid of {pid} at 30": ([*without(2), (pid, 30)], [not_below(30, pid)])
        for pid in (30, 35, 60, 99)
    },
    "a pid moved back": ([*without(3), (20, 40)], [fork(20, 30, 40)]),
    "one id and two pids": ([*CHAIN, (20, 50)], [fork(20, 30, 50), duplicate(50, 20)]),
    "a missing row of two children": ([*without(2), (30, 45)], [fork(30, 40, 45), gap(20, 30)]),
}


@pytest.mark.parametrize("name", CASES)
def test_faults_with_known_rows_are_these(name: str) -> None:
    rows, expected = CASES[name]
    assert faults_of(rows) == expected


def test_faults_without_a_head_or_behind_a_start_are_what_lies_between() -> None:
    assert faults_of(CHAIN, head=None) == []
    assert faults_of(CHAIN[:-1], head=None) == []
    assert faults_of(CHAIN[2:], start=20) == []
    assert faults_of([], head=0) == []
    assert faults_of([], head=None) == []
    assert faults_of([], start=20, head=20) == []


def test_gaps_within_a_skipped_range_are_none_and_all_others_stay() -> None:
    links = [Link(pid, row_id, row_id) for pid, row_id in without(1, 2, 4)]
    assert find_faults("s", links, 0, 60, [(10, 30)]) == [gap(40, 50)]
    assert find_faults("s", links, 0, 60, [(10, 29), (41, 50)]) == [gap(10, 30), gap(40, 50)]


def test_faults_with_paths_and_ranges_not_looked_at_claim_nothing_about_their_rows() -> None:
    drawn = [Link(0, 10, 20), Link(30, 40, 60)]
    assert find_faults("s", drawn, 0, 60) == faults_of(without(2))
    links = [Link(0, 10, 10), Link(99, 20, 50, is_damaged=True), Link(50, 60, 60)]
    assert find_faults("s", links, 0, 60) == []
    assert find_faults("s", [*links[:2], Link(45, 60, 60)], 0, 60) == []
