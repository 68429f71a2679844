"""Chains of known rows, and faults planted in them with what must be found for each."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.model import Event
from chain_verifier.findings import Finding, Kind

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence
    from pathlib import Path

CHAIN_ID = 7


class Row(Struct, frozen=True):
    """One row of a chain; None stands for a column without a value."""

    id: int | None
    pid: int | None
    key: str | None = ""
    event_time_ns: int | None = 0
    payload: bytes | None = b""
    chain_id: int | None = CHAIN_ID

    def line(self) -> str:
        payload = None if self.payload is None else base64.b64encode(self.payload).decode()
        return json.dumps(
            {
                "chain_id": self.chain_id,
                "id": self.id,
                "pid": self.pid,
                "key": self.key,
                "event_time_ns": self.event_time_ns,
                "payload": payload,
            }
        )


def chain_of(rng: random.Random, count: int) -> list[Row]:
    """A whole chain whose ids skip numbers, so that there are ids that are no rows."""
    rows, at_id = [], 0
    for number in range(count):
        row_id = at_id + rng.randint(2, 6)
        key = f'order {number} "}}{{" é'
        rows.append(Row(row_id, at_id, key, 10**18 + number, rng.randbytes(rng.randint(0, 40))))
        at_id = row_id
    return rows


def head_of(rows: Sequence[Row]) -> int:
    return max((row.id or 0 for row in rows), default=0)


def events_of(rows: Sequence[Row]) -> list[Event]:
    """The rows as events; a column without a value has the empty one."""
    return [
        Event(row.id or 0, row.pid or 0, row.key or "", row.event_time_ns or 0, row.payload or b"")
        for row in rows
    ]


def id_of(row: Row) -> int:
    """Return the id of a row that has one."""
    assert row.id is not None
    return row.id


def write_journal(path: Path, rows: Sequence[Row], torn: str = "") -> Path:
    text = "".join(f"{row.line()}\n" for row in rows)
    path.write_text(text + torn, encoding="utf-8")
    return path


def as_one(findings: Iterable[Finding]) -> Finding:
    """Return what is found instead of these, which are of neighbouring rows."""
    found = list(findings)
    return replace(found[0], last_id=found[-1].id, rows=len(found))


class Planted(Struct):
    """Rows in which something was done to a few places far from each other."""

    rows: list[Row]
    expected: list[Finding]
    source: str

    def add(self, kind: Kind, **fields: Any) -> None:
        self.expected.append(Finding(kind=kind, source=self.source, **fields))


def _delete(planted: Planted, index: int, count: int) -> None:
    rows = planted.rows
    planted.add(Kind.GAP, after_id=rows[index].pid, until_id=rows[index + count - 1].id)
    del rows[index : index + count]


def _repeat(planted: Planted, index: int) -> None:
    rows = planted.rows
    planted.add(Kind.DUPLICATE, id=rows[index].id, count=2)
    rows.insert(index + 1, rows[index])


def _fork(planted: Planted, index: int) -> None:
    """Add a row behind `index` that names the pid that `index` names."""
    row = planted.rows[index]
    other = replace(row, id=(row.id or 0) + 1, key="fork")
    planted.add(Kind.FORK, pid=row.pid, ids=(row.id, other.id))
    planted.rows.insert(index + 1, other)


def _orphan(planted: Planted, index: int) -> None:
    """Add a row that names a number which is no row, where none is missing."""
    row = planted.rows[index]
    other = replace(planted.rows[index + 1], id=(row.id or 0) + 1, pid=(row.pid or 0) + 1)
    planted.add(Kind.ORPHAN, id=other.id, pid=other.pid)
    planted.rows.insert(index + 1, other)


def _raise_pid(planted: Planted, index: int) -> None:
    row = planted.rows[index]
    pid = planted.rows[index + 1].id
    planted.add(Kind.PID_NOT_BELOW_ID, id=row.id, pid=pid)
    planted.rows[index] = replace(row, pid=pid)


def _second_root(planted: Planted, index: int) -> None:
    row = planted.rows[index]
    other = replace(row, id=(row.id or 0) + 1, pid=0)
    planted.add(Kind.SECOND_ROOT, pid=0, ids=(planted.rows[0].id, other.id))
    planted.rows.insert(index + 1, other)


_SPACING = 8
"""Faults next to each other can look like other faults; each gets this many rows of its own."""


def plant(
    rng: random.Random, rows: Sequence[Row], source: str, faults: tuple[int, int] = (1, 5)
) -> Planted:
    """Plant 1 to 5 `faults`, at most one of them a second root, the first row left as it is."""
    planted = Planted(list(rows), [], source)
    places = range(2, len(rows) - 4, _SPACING)
    chosen = rng.sample(places, rng.randint(*faults))
    kinds = [_repeat, _fork, _orphan, _raise_pid]
    # From the end on, so that the places before stay where they are.
    for nth, index in enumerate(sorted(chosen, reverse=True)):
        what = rng.choice([*kinds, *([_second_root] if nth == 0 else []), None, None])
        if what is None:
            _delete(planted, index, rng.choice([1, 1, 3]))
        else:
            what(planted, index)
    return planted
