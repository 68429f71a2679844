"""The seal: what it is made of, and that nothing can be changed under it."""

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain_kernel.model import Event
from chain_kernel.seal import SEAL_BYTES, PageImage, event_pages, genesis_seal, next_seal
from tests.vectors.frames import rows_of

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "tests" / "vectors" / "seals.json").read_text(encoding="utf-8"))
DATABASE = UUID(VECTORS["database_id"])
EVENTS = [Event(11, 10, "a", 1, b"first"), Event(15, 11, "b", 2, b"second")]
BATCH: dict[str, Any] = {
    "previous": bytes(range(32)),
    "epoch": 3,
    "first_id": 11,
    "last_id": 15,
    "row_count": 2,
    "committed_at_us": 1_700_000_000_000_000,
    "pages": event_pages(EVENTS),
}


def seal_of(**changed: Any) -> bytes:
    batch = BATCH | changed
    return next_seal(batch.pop("previous"), **batch)


def pages_of(batch: dict[str, Any]) -> tuple[PageImage, ...]:
    return event_pages([Event(*row) for row in rows_of(batch)])


def seals_by_the_kernel() -> list[str]:
    seal = genesis_seal(DATABASE, VECTORS["chain_id"])
    seals = [seal.hex()]
    for batch in VECTORS["batches"]:
        names = ("epoch", "first_id", "last_id", "row_count", "committed_at_us")
        seal = next_seal(seal, **{name: batch[name] for name in names}, pages=pages_of(batch))
        seals.append(seal.hex())
    return seals


@pytest.mark.usefixtures("implementation")
def test_seals_of_the_vectors_are_as_written() -> None:
    written = [VECTORS["genesis_seal"], *(batch["seal"] for batch in VECTORS["batches"])]
    assert seals_by_the_kernel() == written


def test_program_in_the_document_recomputes_the_vectors() -> None:
    document = (ROOT / "docs" / "seal.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    assert len(program.splitlines()) <= 20
    assert set(re.findall(r"^(?:from|import) (\w+)", program, re.MULTILINE)) <= {
        "hashlib",
        "struct",
    }
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 - the document's own program is what is tested
    seal = names["genesis"](DATABASE.bytes, VECTORS["chain_id"])
    assert seal.hex() == VECTORS["genesis_seal"]
    for batch in VECTORS["batches"]:
        rows = [(*row[:4], bytes.fromhex(row[4])) for row in batch["rows"]]
        seal = names["next_seal"](seal, batch["epoch"], batch["committed_at_us"], rows)
        assert seal.hex() == batch["seal"], batch["name"]


def test_document_shows_every_vector() -> None:
    document = (ROOT / "docs" / "seal.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```text\n([0-9a-f\s]+)```", document)
    shown = {"".join(block.split()) for block in blocks}
    written = {VECTORS["genesis_seal"]}
    for batch in VECTORS["batches"]:
        written |= {batch["column_images"], batch["seal"]}
    assert shown == written


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous", bytes(32)),
        ("epoch", 4),
        ("first_id", 12),
        ("last_id", 16),
        ("row_count", 3),
        ("committed_at_us", 1_700_000_000_000_001),
        ("pages", event_pages(EVENTS[:1])),
        ("pages", event_pages(EVENTS[::-1])),
        ("pages", event_pages([*EVENTS, EVENTS[1]])),
    ],
)
def test_seal_with_any_field_changed_differs(field: str, value: object) -> None:
    assert seal_of(**{field: value}) != seal_of()


@settings(deadline=None, print_blob=True)
@given(
    row=st.integers(0, 1),
    change=st.sampled_from(
        [("id", 12), ("pid", 9), ("key", "c"), ("event_time_ns", 9), ("payload", b"firs")]
    ),
)
def test_seal_covers_every_column(row: int, change: tuple[str, object]) -> None:
    fields = [{name: getattr(event, name) for name in event.__struct_fields__} for event in EVENTS]
    fields[row][change[0]] = change[1]
    changed = [Event(**row_fields) for row_fields in fields]
    assert seal_of(pages=event_pages(changed)) != seal_of()


def test_seal_of_a_batch_in_several_pages_is_the_same() -> None:
    assert seal_of(pages=[page for event in EVENTS for page in event_pages([event])]) == seal_of()


def test_genesis_seal_is_bound_to_database_and_chain() -> None:
    other = UUID(int=DATABASE.int + 1)
    seals = {genesis_seal(DATABASE, 1), genesis_seal(DATABASE, 2), genesis_seal(other, 1)}
    assert len(seals) == 3
    assert {len(seal) for seal in seals} == {SEAL_BYTES}
