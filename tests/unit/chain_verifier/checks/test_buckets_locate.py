"""Buckets are opened until every fault has a name, and no further."""

import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

from chain_verifier.checks.buckets import Bucket, Horizon, Link, find_faults, is_one_path, locate
from chain_verifier.findings import Finding, Kind
from tests.cases import case

Row = tuple[int, int]
"""(pid, id)"""


def is_path(rows: Sequence[Row]) -> bool:
    """The definition itself: walk from the lowest pid, each row must begin where the last ended."""
    at_id = min(pid for pid, _ in rows)
    for pid, row_id in sorted(rows, key=lambda row: row[1]):
        if pid != at_id or row_id <= pid:
            return False
        at_id = row_id
    return True


def bucketed(rows: Sequence[Row], bits: int) -> list[Bucket]:
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[1] >> bits].append(row)
    return [
        Bucket(
            bits=bits,
            number=number,
            rows=len(group),
            is_whole=is_path(group),
            pid=min(pid for pid, _ in group),
            first_id=min(row_id for _, row_id in group),
            last_id=max(row_id for _, row_id in group),
            nulls=0,
            fingerprint=0,
        )
        for number, group in sorted(groups.items())
    ]


class ListOpener:
    """Rows in memory, and a record of how many were opened."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.rows_opened = 0

    def _of(self, buckets: Sequence[Bucket]) -> list[Row]:
        (bits,) = {bucket.bits for bucket in buckets}
        numbers = {bucket.number for bucket in buckets}
        return [row for row in self.rows if row[1] >> bits in numbers]

    def split(self, buckets: Sequence[Bucket], bits: int) -> list[Bucket]:
        return bucketed(self._of(buckets), bits)

    def links(self, buckets: Sequence[Bucket]) -> list[Link]:
        found: list[Link] = []
        for bucket in buckets:
            found += [Link(pid, row_id, row_id) for pid, row_id in self._of([bucket])]
        self.rows_opened += len(found)
        return found


def clean_chain(rng: random.Random, count: int) -> list[Row]:
    rows, at_id = [], 0
    for _ in range(count):
        row_id = at_id + rng.choice([1, 1, 1, 2, 3, 40])
        rows.append((at_id, row_id))
        at_id = row_id
    return rows


def damaged(rng: random.Random, rows: Sequence[Row]) -> list[Row]:
    """Do 1 to 5 things to the rows, anywhere, next to each other or not."""
    found = list(rows)
    last_id = rows[-1][1]
    for _ in range(rng.randint(1, 5)):
        index = rng.randrange(len(found)) if found else 0
        what = rng.choice(["delete", "delete", "copy", "pid", "insert", "id"])
        if what == "insert" or not found:
            row_id = rng.randint(1, last_id)
            found.append((rng.randrange(row_id), row_id))
        elif what == "delete":
            del found[index : index + rng.choice([1, 1, 5])]
        elif what == "copy":
            found.append(found[index])
        elif what == "pid":
            found[index] = (rng.randint(0, last_id), found[index][1])
        else:
            found[index] = (found[index][0], rng.randint(1, last_id))
    rng.shuffle(found)
    return found


def horizon(head: int | None, start: int = 0) -> Horizon:
    return Horizon(chain_id=1, start=start, head=head)


@pytest.mark.parametrize("bits", [1, 3, 6, 30])
def test_locate_with_random_damage_finds_what_looking_at_every_row_finds(bits: int) -> None:
    for seed in range(100):
        with case(seed):
            rng = random.Random(seed)
            rows = clean_chain(rng, 60)
            head = rng.choice([None, rows[-1][1]])
            rows = damaged(rng, rows)
            buckets = bucketed(rows, bits)
            every_row = [Link(pid, row_id, row_id) for pid, row_id in rows]

            found = locate("s", buckets, horizon(head), ListOpener(rows), leaf_bits=min(bits, 4))

            expected = find_faults("s", every_row, 0, head)
            assert sorted(found, key=str) == sorted(expected, key=str)
            assert bool(found) is not is_one_path(buckets, horizon(head))


def test_locate_with_a_clean_chain_opens_no_row() -> None:
    for seed in range(100):
        with case(seed):
            rng = random.Random(seed)
            rows = clean_chain(rng, 200)
            opener = ListOpener(rows)
            assert locate("s", bucketed(rows, 4), horizon(rows[-1][1]), opener, leaf_bits=4) == []
            assert opener.rows_opened == 0


def test_locate_with_one_missing_row_opens_one_bucket() -> None:
    rows = [(i, i + 1) for i in range(4096)]
    missing = rows.pop(2000)
    opener = ListOpener(rows)
    found = locate("s", bucketed(rows, 10), horizon(4096), opener, leaf_bits=4)
    assert found == [Finding(kind=Kind.GAP, source="s", after_id=missing[0], until_id=missing[1])]
    assert opener.rows_opened <= 16


def test_locate_with_more_damage_than_may_be_opened_names_the_ranges() -> None:
    rows = [(row_id + 1, row_id) for row_id in range(1, 257)]
    opener = ListOpener(rows)
    found = locate("s", bucketed(rows, 4), horizon(256), opener, leaf_bits=4, rows_opened_max=20)
    ranges = [finding for finding in found if finding.kind is Kind.DAMAGED_RANGE]
    named = {finding.id for finding in found if finding.kind is Kind.PID_NOT_BELOW_ID}
    assert opener.rows_opened <= 20
    assert named
    for row_id in range(1, 257):
        in_range = any((one.id or 0) <= row_id <= (one.until_id or 0) for one in ranges)
        assert (row_id in named) is not in_range


def test_locate_with_huge_ids_keeps_its_arithmetic() -> None:
    top = 2**63 - 1
    rows = [(0, 5), (5, top - 9), (top - 8, top)]
    found = locate("s", bucketed(rows, 12), horizon(top), ListOpener(rows), leaf_bits=12)
    assert found == [Finding(kind=Kind.GAP, source="s", after_id=top - 9, until_id=top - 8)]
