"""Chains of known rows, and journals of them."""

import base64
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.model import Event
from chain_verifier.findings import Finding

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
