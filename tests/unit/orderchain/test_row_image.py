"""Row images: the tuples of PostgreSQL's binary COPY, which the seal covers too."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderchain.event import Event
from orderchain.limits import CHAIN_ID_MAX, ID_MAX
from orderchain.row_image import COLUMNS, COPY_HEADER, COPY_TRAILER, row_images

VECTORS = json.loads(
    (Path(__file__).parents[2] / "vectors" / "seals.json").read_text(encoding="utf-8")
)
PATIENT = settings(deadline=None, print_blob=True)

_events = st.builds(
    Event,
    id=st.integers(1, ID_MAX),
    pid=st.integers(0, ID_MAX),
    key=st.text(min_size=1, max_size=12),
    event_time_ns=st.integers(-(2**63), 2**63 - 1),
    payload=st.binary(max_size=12),
)


def copy_tuple(*fields: bytes) -> bytes:
    """Return one tuple of COPY BINARY as PostgreSQL documents it: count, then length and bytes."""
    image = struct.pack(">h", len(fields))
    return image + b"".join(struct.pack(">i", len(field)) + field for field in fields)


def image_of(chain_id: int, event: Event) -> bytes:
    return copy_tuple(
        struct.pack(">i", chain_id),
        struct.pack(">q", event.id),
        struct.pack(">q", event.pid),
        event.key.encode(),
        struct.pack(">q", event.event_time_ns),
        event.payload,
    )


@PATIENT
@given(chain_id=st.integers(1, CHAIN_ID_MAX), events=st.lists(_events, max_size=8))
def test_row_images_with_any_rows_are_copy_tuples(chain_id: int, events: list[Event]) -> None:
    expected = b"".join(image_of(chain_id, event) for event in events)
    assert row_images(chain_id, events) == expected


@PATIENT
@given(first=st.lists(_events, max_size=3), second=st.lists(_events, max_size=3))
def test_row_images_with_different_rows_differ(first: list[Event], second: list[Event]) -> None:
    assert (row_images(1, first) == row_images(1, second)) is (first == second)


def test_row_images_with_bytes_moved_between_fields_differ() -> None:
    images = {
        row_images(1, [Event(2, 1, "ab", 0, b"c")]),
        row_images(1, [Event(2, 1, "a", 0, b"bc")]),
        row_images(1, [Event(2, 1, "abc", 0, b"")]),
        row_images(1, [Event(1, 2, "ab", 0, b"c")]),
    }
    assert len(images) == 4


@pytest.mark.parametrize("batch", VECTORS["batches"], ids=lambda batch: batch["name"])
def test_row_images_with_each_vector_give_its_bytes(batch: dict[str, object]) -> None:
    events = [Event(*row[:4], bytes.fromhex(row[4])) for row in batch["rows"]]  # type: ignore[attr-defined]
    assert row_images(VECTORS["chain_id"], events).hex() == batch["row_images"]


def test_copy_frame_is_the_documented_signature_flags_and_trailer() -> None:
    signature = b"PGCOPY\n\377\r\n\0"
    assert len(signature) == 11
    assert struct.pack(">11sii", signature, 0, 0) == COPY_HEADER
    assert struct.pack(">h", -1) == COPY_TRAILER


def test_columns_are_all_fields_of_an_event_behind_the_chain() -> None:
    assert ("chain_id", *Event.__struct_fields__) == COLUMNS


@pytest.mark.parametrize("event", [Event(ID_MAX + 1, 0, "k", 0, b""), Event(1, 0, "k", 2**63, b"")])
def test_row_images_with_a_number_beyond_64_bits_raise(event: Event) -> None:
    with pytest.raises(struct.error):
        row_images(1, [event])
