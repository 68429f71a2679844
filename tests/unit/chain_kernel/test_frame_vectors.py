"""The test vectors of the wire format, and the document that shows them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from chain_kernel.errors import FrameError
from chain_kernel.frame import (
    HEADER_BYTES,
    MAGIC,
    VERSION,
    FrameHeader,
    decode_body,
    decode_header,
    encode_frame,
    is_signed,
)
from chain_kernel.model import Event
from chain_kernel.seal import Columns
from tests.vectors.frames import frame_of, refused_frames, rows_of

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "tests" / "vectors" / "frames.json").read_text(encoding="utf-8"))
SEALS = json.loads((ROOT / "tests" / "vectors" / "seals.json").read_text(encoding="utf-8"))
KEY = bytes.fromhex(VECTORS["frame_key"])
DOCUMENT = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
_BYTES = ("publisher_nonce", "seal_before", "seal_after")

frames = pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda vector: vector["name"])


def header_of(vector: dict[str, Any]) -> FrameHeader:
    fields = vector["header"]
    return FrameHeader(**(fields | {name: bytes.fromhex(fields[name]) for name in _BYTES}))


def events_of(vector: dict[str, Any]) -> list[Event]:
    return [Event(*row) for row in rows_of(vector)]


def field_table() -> list[tuple[int, int, str]]:
    """Return (offset, size, name) of each field as the document's table has them."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", DOCUMENT, re.MULTILINE)
    return [(int(offset), int(size), name) for offset, size, name in rows]


@frames
def test_vector_is_decoded_into_its_header_and_rows(vector: dict[str, Any]) -> None:
    record = bytes.fromhex(vector["frame"])
    header = decode_header(record)
    assert header == header_of(vector)
    assert is_signed(record, KEY)
    assert (decode_body(record, header) if header.count else []) == events_of(vector)


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS["frames"] if not vector["appended"]],
    ids=lambda vector: vector["name"],
)
@pytest.mark.usefixtures("implementation")
def test_vector_is_what_encoding_gives(vector: dict[str, Any]) -> None:
    events = events_of(vector)
    for rows in (events, Columns.of(events) if events else ()):
        assert encode_frame(header_of(vector), rows, KEY).hex() == vector["frame"]


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["name"])
def test_vector_to_be_refused_is_refused_for_its_reason(vector: dict[str, Any]) -> None:
    record = bytes.fromhex(vector["frame"])
    if vector["reason"] == "mac":
        assert decode_header(record)
        assert not is_signed(record, KEY)
        return
    with pytest.raises(FrameError) as caught:
        decode_body(record, decode_header(record))
    assert caught.value.reason == vector["reason"]


def test_vectors_are_what_is_made_without_the_codec() -> None:
    for vector in VECTORS["frames"]:
        assert frame_of(vector, KEY).hex() == vector["frame"], vector["name"]
    made = refused_frames(bytes.fromhex(VECTORS["frames"][0]["frame"]), KEY)
    kept = {vector["name"]: vector["frame"] for vector in VECTORS["refused"]}
    assert {name: frame.hex() for name, frame in made.items()} == {
        name: kept[name] for name in made
    }


def test_document_table_covers_the_header_without_a_hole() -> None:
    end = 0
    for offset, size, name in field_table():
        assert offset == end, name
        end += size
    assert end == HEADER_BYTES


@frames
def test_document_table_reads_the_fields_of_each_vector(vector: dict[str, Any]) -> None:
    record = bytes.fromhex(vector["frame"])
    read = {name: record[offset : offset + size] for offset, size, name in field_table()}
    header = header_of(vector)
    assert read["magic"] == MAGIC
    assert read["version"] == bytes([VERSION])
    assert read["flags"][0] == header.is_heartbeat + 2 * header.is_batch_end
    header_bytes = int.from_bytes(read["header_bytes"], "big")
    assert header_bytes + int.from_bytes(read["body_bytes"], "big") == len(record)
    for name in FrameHeader.__struct_fields__:
        value = getattr(header, name)
        if name != "is_batch_end":
            size = len(read[name])
            assert read[name] == (
                value if isinstance(value, bytes) else value.to_bytes(size, "big")
            ), name


def test_document_shows_vectors_as_they_are() -> None:
    shown = re.findall(r"^### (.*?)\n.*?```text\n(.*?)```", DOCUMENT, re.M | re.S)
    assert len(shown) == DOCUMENT.count("\n### ") > 0
    kept = {vector["name"]: vector["frame"] for vector in VECTORS["frames"]}
    assert all("".join(block.split()) == kept[name] for name, block in shown)


def test_vectors_carry_the_seals_of_the_seal_vectors() -> None:
    seals = [SEALS["genesis_seal"], *(batch["seal"] for batch in SEALS["batches"])]
    for vector in VECTORS["frames"]:
        header = vector["header"]
        assert header["seal_before"] in seals, vector["name"]
        if header["is_batch_end"]:
            after = seals[seals.index(header["seal_before"]) + 1]
            assert header["seal_after"] == after, vector["name"]
