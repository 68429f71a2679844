"""Seeded chains with 1 to 5 faults in their rows, and for each fault exactly what must be found."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field
from msgspec.structs import replace

from chain_verifier.findings import Finding, Kind
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row, chain_of

FIELDS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.GAP: ("after_id", "until_id"),
    Kind.FORK: ("pid", "ids"),
    Kind.SECOND_ROOT: ("pid", "ids"),
    Kind.ORPHAN: ("id", "pid"),
    Kind.DUPLICATE: ("id", "last_id", "rows", "count"),
    Kind.PID_NOT_BELOW_ID: ("id", "pid"),
    Kind.NULL: ("id", "last_id", "rows", "pid", "columns"),
    Kind.FOREIGN_CHAIN: ("id", "last_id", "rows", "pid", "chain_id"),
    Kind.BEYOND_HEAD: ("id", "last_id", "rows", "pid", "until_id"),
    Kind.OUT_OF_ORDER: ("id", "until_id", "after_id", "count"),
    Kind.ROW_COUNT: ("count", "expected_count"),
    Kind.WRONG_PAGE: ("id", "until_id", "ids", "columns"),
    Kind.WRONG_EPOCH: ("id", "until_id", "epoch", "expected_epoch"),
    Kind.SEAL_MISMATCH: ("id", "until_id"),
    Kind.HEAD_SEAL: ("id",),
    Kind.BATCH_COUNT: ("id", "until_id", "count", "expected_count"),
    Kind.BATCH_RANGE: ("id", "until_id", "ids", "pid"),
    Kind.LACKING: ("id", "last_id", "rows"),
    Kind.SURPLUS: ("id", "last_id", "rows"),
    Kind.DIFFERING: ("id", "last_id", "rows", "columns"),
}
"""What a finding of each kind says, as `docs/verification.md` has it: all of this must be exact."""

Shown = tuple[Any, ...]


def shown(finding: Finding) -> Shown:
    """The kind of a finding, with everything that it says of where it is."""
    return finding.kind.value, *(getattr(finding, name) for name in FIELDS[finding.kind])


def expect(kind: Kind, **fields: Any) -> Shown:
    """What `shown` gives for such a finding."""
    assert fields.keys() <= set(FIELDS[kind]), fields
    return kind.value, *(fields.get(name) for name in FIELDS[kind])


def finding_of(said: Shown, source: str) -> Finding:
    """The finding of one source for which `shown` gives this."""
    kind = Kind(said[0])
    fields = dict(zip(FIELDS[kind], said[1:], strict=True))
    known = {name: value for name, value in fields.items() if value is not None}
    return Finding(kind=kind, source=source, **known)


class Planted(Struct):
    """A chain, the same with faults in it, and what they must be found as."""

    seed: int
    clean: list[Row]
    rows: list[Row]
    expected: list[Shown] = field(default_factory=list)

    @property
    def head(self) -> int:
        return self.clean[-1].id or 0

    def findings(self, source: str) -> list[Finding]:
        """What must be found in `source`."""
        return [finding_of(one, source) for one in self.expected]


REGION: Final = 12
"""Rows to each fault: faults next to each other can look like another one."""


class Planting:
    """One region of a chain in which a fault is planted: rows from `at` on."""

    def __init__(self, planted: Planted, at: int, rng: random.Random) -> None:
        self.rng = rng
        self.expected = planted.expected
        self.rows = planted.rows
        self.at = at
        self.clean = planted.clean

    def row(self, offset: int) -> Row:
        return self.clean[self.at + offset]

    def id(self, offset: int) -> int:
        return self.row(offset).id or 0

    def spare(self, offset: int) -> int:
        """A number after a row which is no row: ids rise by two at least."""
        return self.id(offset) + 1

    def place(self, offset: int) -> int:
        """Where a row of the region is now."""
        return self.rows.index(self.row(offset))

    def add(self, row_id: int, pid: int, behind: int) -> Row:
        """Add a row right behind another one of the region."""
        row = replace(self.row(behind), id=row_id, pid=pid, key=f"added {row_id}")
        self.rows.insert(self.place(behind) + 1, row)
        return row


def gap(plant: Planting) -> None:
    count = plant.rng.choice([1, 1, 2, 5])
    for offset in range(1, 1 + count):
        plant.rows.remove(plant.row(offset))
    plant.expected.append(expect(Kind.GAP, after_id=plant.id(0), until_id=plant.id(count)))


def fork(plant: Planting) -> None:
    ids = [plant.id(1), plant.spare(1)]
    plant.add(plant.spare(1), plant.id(0), behind=1)
    if plant.rng.random() < 0.3:
        ids.append(plant.spare(2))
        plant.add(plant.spare(2), plant.id(0), behind=2)
    plant.expected.append(expect(Kind.FORK, pid=plant.id(0), ids=tuple(ids)))


def forked_branch(plant: Planting) -> None:
    """A second leader that went on for some rows."""
    at_id = plant.id(0)
    for offset in range(1, 1 + plant.rng.randint(2, 4)):
        plant.add(plant.spare(offset), at_id, behind=offset)
        at_id = plant.spare(offset)
    ids = (plant.id(1), plant.spare(1))
    plant.expected.append(expect(Kind.FORK, pid=plant.id(0), ids=ids))


def orphan(plant: Planting) -> None:
    plant.add(plant.spare(2), plant.spare(1), behind=2)
    plant.expected.append(expect(Kind.ORPHAN, id=plant.spare(2), pid=plant.spare(1)))


def detached_part(plant: Planting) -> None:
    """Rows that hang together, but on nothing."""
    at_id = plant.spare(1)
    for offset in range(2, 2 + plant.rng.randint(2, 5)):
        plant.add(plant.spare(offset), at_id, behind=offset)
        at_id = plant.spare(offset)
    plant.expected.append(expect(Kind.ORPHAN, id=plant.spare(2), pid=plant.spare(1)))


def duplicate(plant: Planting) -> None:
    """The same row again, or another one of the same id; once or twice, near or further on."""
    count = plant.rng.choice([2, 2, 3])
    for _ in range(count - 1):
        again = plant.rng.choice([plant.row(1), replace(plant.row(1), payload=b"other")])
        plant.rows.insert(plant.place(plant.rng.choice([1, 5])) + 1, again)
    plant.expected.append(expect(Kind.DUPLICATE, id=plant.id(1), count=count))


def pid_not_below_id(plant: Planting) -> None:
    pid = plant.id(plant.rng.choice([1, 2, 4]))
    plant.rows[plant.place(1)] = replace(plant.row(1), pid=pid)
    plant.expected.append(expect(Kind.PID_NOT_BELOW_ID, id=plant.id(1), pid=pid))


def second_root(plant: Planting) -> None:
    plant.add(plant.spare(1), 0, behind=1)
    ids = (plant.clean[0].id, plant.spare(1))
    plant.expected.append(expect(Kind.SECOND_ROOT, pid=0, ids=ids))


def null(plant: Planting) -> None:
    column = plant.rng.choice(["key", "event_time_ns", "payload"])
    plant.rows[plant.place(1)] = replace(plant.row(1), **{column: None})
    plant.expected.append(expect(Kind.NULL, id=plant.id(1), pid=plant.id(0), columns=(column,)))


def foreign(plant: Planting) -> None:
    row = plant.add(plant.spare(1), plant.id(1), behind=1)
    plant.rows[plant.rows.index(row)] = replace(row, chain_id=CHAIN_ID + 1)
    plant.expected.append(expect(Kind.FOREIGN_CHAIN, id=row.id, pid=row.pid, chain_id=CHAIN_ID + 1))


def out_of_order(plant: Planting) -> None:
    """Some rows come after one that comes after them."""
    count, behind = plant.rng.choice([1, 1, 3]), plant.rng.randint(4, 8)
    moved = [plant.row(offset) for offset in range(1, 1 + count)]
    for row in moved:
        plant.rows.remove(row)
    at = plant.place(behind) + 1
    plant.rows[at:at] = moved
    plant.expected.append(
        expect(
            Kind.OUT_OF_ORDER,
            id=plant.id(1),
            until_id=plant.id(count),
            after_id=plant.id(behind),
            count=count,
        )
    )


SETS: Final = (gap, fork, forked_branch, orphan, detached_part, duplicate, pid_not_below_id, null,
               foreign)  # fmt: skip
"""What may be wrong with a set of rows, whatever their order."""

ONCE: Final = (second_root,)
"""A chain gets one of these at most: two of them are one finding."""

FAULTS_MAX: Final = 5


def no_tail(planted: Planted, rng: random.Random) -> None:
    """The last rows are missing: only the head shows it."""
    count = rng.choice([1, 3])
    kept = planted.clean[-count - 1]
    planted.rows = planted.rows[: planted.rows.index(kept) + 1]
    planted.expected.append(expect(Kind.GAP, after_id=kept.id, until_id=planted.head))


def beyond_head(planted: Planted, rng: random.Random) -> None:
    """A row that was never committed."""
    row = Row(planted.head + rng.randint(1, 9), planted.head, "never", 0, b"")
    planted.rows.append(row)
    planted.expected.append(expect(Kind.BEYOND_HEAD, id=row.id, pid=row.pid, until_id=planted.head))


def plant_rows(
    seed: int,
    *,
    has_order: bool,
    count: tuple[int, int] = (70, 160),
    faults: tuple[int, int] = (1, FAULTS_MAX),
) -> Planted:
    """Make a chain of `count` rows and plant `faults`; those of order where the source has one."""
    rng = random.Random(f"rows {seed}")
    rows = chain_of(rng, rng.randint(*count))
    planted = Planted(seed, rows, list(rows))
    left = rng.randint(*faults)
    at_end: list[Callable[[Planted, random.Random], None]] = [no_tail, beyond_head]
    if rng.random() < 0.25:
        rng.choice(at_end)(planted, rng)
        left -= 1
    regions = rng.sample(range(1, len(rows) - REGION - 4, REGION), left)
    kinds: list[Callable[[Planting], None]] = [*SETS, *([out_of_order] * 4 if has_order else [])]
    once = list(ONCE)
    for at in regions:
        if once and rng.random() < 0.1:
            kind: Callable[[Planting], None] = once.pop()
        else:
            kind = rng.choice(kinds)
        kind(Planting(planted, at, rng))
    return planted


PARQUET: Final = pa.schema(
    [
        ("chain_id", pa.int32()),
        ("id", pa.int64()),
        ("pid", pa.int64()),
        ("key", pa.string()),
        ("event_time_ns", pa.int64()),
        ("payload", pa.binary()),
    ]
)


def write_parquet(
    path: Path, rows: Sequence[Row], rng: random.Random | None = None, group_rows: int = 500
) -> Path:
    """Write rows to one file; with `rng` in any order, which means nothing there."""
    chosen = rng.sample(list(rows), len(rows)) if rng else list(rows)
    columns = [[getattr(row, name) for row in chosen] for name in PARQUET.names]
    pq.write_table(pa.table(columns, schema=PARQUET), path, row_group_size=group_rows)
    return path
