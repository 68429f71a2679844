"""Faults planted in a set of rows are found with their exact ids, and nothing else is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from chain_verifier.findings import Finding, Kind
from tests.integration.chain_verifier.planted_faults import Row, chain_of, head_of, id_of
from tests.integration.chain_verifier.seeded_rows import plant_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chain_verifier.verification import ScannedSource

    Examine = Callable[..., ScannedSource]

ROWS = chain_of(random.Random(1), 260)
HEAD = head_of(ROWS)


def finding(kind: Kind, **fields: Any) -> Finding:
    return Finding(kind=kind, source="rows", **fields)


@pytest.mark.parametrize("bits", [2, 6, 40])
def test_check_with_a_clean_chain_finds_nothing(examine_rows: Examine, bits: int) -> None:
    """In any order; and behind a start, whatever lies before it."""
    shuffled = random.Random(2).sample(ROWS, len(ROWS))
    scanned = examine_rows(shuffled, HEAD, bits=bits)
    assert (scanned.findings.total, scanned.rows) == (0, len(ROWS))
    scanned = examine_rows([*ROWS[:3], *ROWS[5:]], HEAD, start=ROWS[20].id, bits=bits)
    assert (scanned.findings.total, scanned.rows) == (0, len(ROWS) - 21)


def test_check_with_no_rows_or_no_head_finds_what_is_known_to_be_missing(
    examine_rows: Examine,
) -> None:
    assert examine_rows([], 0).findings.total == 0
    assert examine_rows([], None).findings.total == 0
    assert examine_rows(ROWS[:-5], None).findings.total == 0
    (gap,) = examine_rows([], 9).findings.kept
    assert gap == finding(Kind.GAP, after_id=0, until_id=9)


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 3))])
def test_check_with_many_faults_finds_these_and_no_others(examine_rows: Examine, seed: int) -> None:
    """Every kind that a set of rows can have, several times in one chain."""
    planted = plant_rows(seed, has_order=False, count=(800, 800), faults=(40, 60))
    scanned = examine_rows(planted.rows, planted.head, bits=random.Random(seed).choice([3, 5, 7]))
    found = sorted(scanned.findings.kept, key=str)
    beyond = [one for one in planted.findings("rows") if one.kind is Kind.BEYOND_HEAD]
    expected = [one for one in planted.findings("rows") if one not in beyond]
    assert found == sorted(expected, key=str)
    assert scanned.rows_beyond == len(beyond)


def edges(rows: Sequence[Row], bits: int) -> list[int]:
    """A row in the middle of a bucket, the last and the first one of a bucket."""
    numbers = [id_of(row) >> bits for row in rows]
    firsts = [i for i in range(5, len(rows)) if numbers[i] != numbers[i - 1]]
    return [firsts[1] + 1, firsts[3] - 1, firsts[5]]


@pytest.mark.merge
def test_check_with_faults_at_the_edges_of_buckets_names_each(examine_rows: Examine) -> None:
    """Missing rows, the first and the last too; rows twice; forks, one far behind its pid."""
    missing = [0, *edges(ROWS[:60], 4), len(ROWS) - 1]
    again = [ROWS[60 + at] for at in edges(ROWS[60:120], 4)]
    forked = [ROWS[120 + at] for at in edges(ROWS[120:180], 4)]
    others = [replace(row, id=id_of(row) - 1) for row in forked]
    far = replace(ROWS[190], id=id_of(ROWS[240]) + 1)
    kept = [row for index, row in enumerate(ROWS) if index not in missing]
    expected = [
        *(finding(Kind.GAP, after_id=ROWS[at].pid, until_id=ROWS[at].id) for at in missing),
        *(finding(Kind.DUPLICATE, id=row.id, count=2) for row in again),
        *(
            finding(Kind.FORK, pid=row.pid, ids=(other.id, row.id))
            for row, other in zip(forked, others, strict=True)
        ),
        finding(Kind.FORK, pid=far.pid, ids=(ROWS[190].id, far.id)),
    ]
    found = examine_rows([*kept, *again, *others, far], HEAD).findings.kept
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_check_with_nulls_and_rows_of_another_chain_names_rows_and_columns(
    examine_rows: Examine,
) -> None:
    rows = list(ROWS)
    rows[3] = replace(rows[3], payload=None)
    rows[4] = replace(rows[4], key=None, event_time_ns=None)
    rows[9] = replace(rows[9], id=None)
    rows[20] = replace(rows[20], pid=None)
    foreign = replace(ROWS[7], chain_id=8)
    scanned = examine_rows([*rows, foreign], ROWS[-3].id)
    assert set(scanned.findings.kept) == {
        finding(Kind.NULL, id=rows[3].id, pid=rows[3].pid, columns=("payload",)),
        finding(Kind.NULL, id=rows[4].id, pid=rows[4].pid, columns=("key", "event_time_ns")),
        finding(Kind.NULL, id=None, pid=rows[9].pid, columns=("id",)),
        finding(Kind.NULL, id=rows[20].id, pid=None, columns=("pid",)),
        finding(Kind.GAP, after_id=ROWS[8].id, until_id=ROWS[9].id),
        finding(Kind.GAP, after_id=ROWS[19].id, until_id=ROWS[20].id),
        finding(Kind.FOREIGN_CHAIN, id=foreign.id, pid=foreign.pid, chain_id=8),
    }
    assert (scanned.rows_beyond, scanned.beyond_id) == (2, HEAD)
