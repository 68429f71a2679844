"""Frames that are not as they should be: a `FrameError`, never another error, never other rows."""

import struct
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chain_kernel.errors import FrameError
from chain_kernel.frame import (
    HEADER_BYTES,
    MAC_BYTES,
    FrameHeader,
    decode_body,
    decode_header,
    decode_linked_body,
    encode_frame,
    is_signed,
)
from chain_kernel.limits import FRAME_BYTES_MAX, FRAME_ROWS_MAX, ID_MAX
from chain_kernel.model import Event, first_break
from tests.vectors.frames import mac_of

PATIENT = settings(deadline=None, print_blob=True)
EVENTS = [
    Event(11, 10, "a", 1, b"first"),
    Event(12, 11, "b", 2, b""),
    Event(20, 12, "ü", -3, b"\xff\0"),
]
HEADER = FrameHeader(
    chain_id=7,
    epoch=3,
    publisher_epoch=4,
    publisher_nonce=bytes(range(16)),
    first_pid=10,
    first_id=11,
    last_id=20,
    count=3,
    seal_before=bytes(range(32)),
    seal_after=bytes(range(32, 64)),
    is_batch_end=True,
)
KEY = bytes(range(32))
FRAME = encode_frame(HEADER, EVENTS, KEY)
REASONS = {"empty", "oversized", "truncated", "magic", "version", "length", "mac", "bounds"}


def refusal_of(record: bytes | None) -> str:
    """The reason why a reader that knows the term does not take `record`."""
    with pytest.raises(FrameError) as caught:
        decode_body(record or b"", accepted(record))
    assert str(caught.value).startswith(caught.value.reason + ": ")
    # A reader that wants linked rows gets the same answer.
    with pytest.raises(FrameError) as linked:
        decode_linked_body(record or b"", accepted(record))
    assert linked.value.reason == caught.value.reason
    return caught.value.reason


def accepted(record: bytes | None) -> FrameHeader:
    """The header of a frame of the term. Raises FrameError, with `mac` for one of no known key."""
    header = decode_header(record)
    if not is_signed(record or b"", KEY):
        raise FrameError("mac", "not signed")
    return header


def signed(record: bytes) -> bytes:
    """Return `record` with the MAC that fits it: lies of one who has the key."""
    header_bytes = int.from_bytes(record[6:8], "big")
    fields, body = record[: header_bytes - MAC_BYTES], record[header_bytes:]
    return fields + mac_of(body, fields, KEY) + body


def with_bytes(at: int, value: bytes) -> bytes:
    return FRAME[:at] + value + FRAME[at + len(value) :]


def with_body(body: bytes, **changed: Any) -> bytes:
    """Return a correctly signed frame whose body is `body`."""
    header = msgspec.structs.replace(HEADER, **changed)
    record = bytearray(encode_frame(header, EVENTS, KEY)[:HEADER_BYTES] + body)
    struct.pack_into(">I", record, 16, len(body))
    return signed(bytes(record))


def with_rows(*rows: object, **changed: Any) -> bytes:
    return with_body(msgspec.msgpack.encode(rows), **({"count": len(rows)} | changed))


def test_frame_cut_off_anywhere_or_with_any_bit_flipped_is_refused() -> None:
    for size in range(len(FRAME)):
        assert refusal_of(FRAME[:size]) in REASONS, size
    for bit in range(8 * len(FRAME)):
        at = bit // 8
        record = with_bytes(at, bytes([FRAME[at] ^ 1 << bit % 8]))
        assert refusal_of(record) in REASONS, bit


_ONE = {"first_pid": 10, "first_id": 11, "last_id": 11, "count": 1}
BODY = FRAME[HEADER_BYTES:]


def with_header_bytes(size: int) -> bytes:
    record = with_bytes(6, struct.pack(">H", size))
    return record[:16] + struct.pack(">I", len(FRAME) - size) + record[20:]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "empty"),
        (b"", "empty"),
        (FRAME + b"\0", "length"),
        (FRAME + FRAME, "length"),
        *((signed(with_bytes(0, magic)), "magic") for magic in (b"\0\0\0\0", b"ochn", b"OCHM")),
        (b'{"id": 1, "pid": 0}', "magic"),
        (b"\0" * 500, "magic"),
        *((with_header_bytes(size), "length") for size in (0, 7, 8, HEADER_BYTES - 1)),
        (with_body(BODY + b"\0"), "body"),
        *(
            (with_body(BODY, **lie), "body")
            for lie in (
                {"first_pid": 9}, {"first_id": 12}, {"last_id": 21}, {"count": 2}, {"count": 4},
            )
        ),
        # It announces other than it holds.
        *((with_body(body), "body")
          for body in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x90", b"\0")),
        # No UTF-8.
        *(
            (with_body(b"\x91\x95\x0b\x0a" + bytes([0xA0 | len(text)]) + text + b"\x01\xc4\x00",
                       **_ONE), "body")
            for text in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80")
        ),
    ],
)  # fmt: skip
def test_foreign_record_is_refused_for_its_reason(record: bytes | None, reason: str) -> None:
    assert refusal_of(record) == reason


@pytest.mark.parametrize(
    ("version", "older"), [(0, "sequencer"), (1, "sequencer"), (3, "receiver"), (255, "receiver")]
)
def test_frame_with_unknown_version_says_what_to_upgrade(version: int, older: str) -> None:
    shown = f"^version: was {version}, expected 2: upgrade the {older}$"
    with pytest.raises(FrameError, match=shown) as caught:
        decode_header(signed(with_bytes(4, bytes([version]))))
    assert caught.value.reason == "version"


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (8, ">I", 0),  # chain_id
        (8, ">I", 2**31),
        (12, ">I", 0),  # count: no rows, and no heartbeat
        (12, ">I", FRAME_ROWS_MAX + 1),
        (12, ">I", 11),  # more rows than ids from 11 to 20
        (20, ">q", -1),  # epoch
        (20, ">q", 5),  # above the publisher's
        (28, ">q", 2),  # publisher_epoch, below the batch's
        (52, ">q", -1),  # first_pid
        (52, ">q", 11),  # first_pid = first_id
        (60, ">q", 0),  # first_id
        (60, ">q", 21),  # above last_id
        (68, ">q", 10),  # last_id
        (5, ">B", 1),  # heartbeat flag on rows
    ],
)
def test_header_with_impossible_field_is_refused(at: int, layout: str, value: int) -> None:
    assert refusal_of(signed(with_bytes(at, struct.pack(layout, value)))) == "bounds"


@pytest.mark.parametrize(
    ("wrong", "events"),
    [({"first_pid": 19}, []), ({"first_id": 19}, []), ({"last_id": 19}, []), ({}, EVENTS)],
)
def test_heartbeat_with_ids_or_rows_is_refused(wrong: dict[str, int], events: list[Event]) -> None:
    ids = {"first_pid": 20, "first_id": 20, "last_id": 20} | wrong
    header = msgspec.structs.replace(HEADER, count=0, **ids)
    with pytest.raises(FrameError, match="bounds"):
        decode_header(encode_frame(header, events, KEY))


UNFIT_IDS = ("11", b"11", 11.0, None, True, -1, 2**63, 2**64 - 1, [11])


@pytest.mark.parametrize(
    "row",
    [
        *([value, 10, "a", 1, b"x"] for value in UNFIT_IDS),
        *([11, value, "a", 1, b"x"] for value in UNFIT_IDS),
        [0, 0, "a", 1, b"x"],
        [11, 10, "", 1, b"x"],
        [11, 10, "k" * 513, 1, b"x"],
        [11, 10, b"k", 1, b"x"],
        [11, 10, "k", 2**63, b"x"],
        [11, 10, "k", 1.5, b"x"],
        [11, 10, "k", 1, "text"],
        [11, 10, "k", 1, None],
        [11, 10, "k", 1, bytes(256 * 1024 + 1)],
        [11, 10, "k", 1],
        [11, 10, "k", 1, b"x", 0],
        {"id": 11},
        11,
        None,
    ],
)
def test_row_of_another_shape_is_refused(row: object) -> None:
    assert refusal_of(with_rows(row, **_ONE)) == "body"


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\x01", b"\x81", b"\xdc\x00\x01"])
@pytest.mark.parametrize("before", [b"", b"\x91", b"\x91\x95", b"\x91\x95\x0b\x0a\xa1k\x01"])
def test_body_nested_100000_deep_is_refused(before: bytes, opening: bytes) -> None:
    assert refusal_of(with_body(before + opening * 100_000, **_ONE)) == "body"


@pytest.mark.parametrize(
    ("count", "reason"), [(50_000_000, "oversized"), (FRAME_BYTES_MAX - HEADER_BYTES - 5, "body")]
)
def test_body_of_many_small_ints_is_refused_without_objects(count: int, reason: str) -> None:
    record = with_body(b"\xdd" + struct.pack(">I", count) + bytes(count))
    tracemalloc.start()
    try:
        assert refusal_of(record) == reason
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


NEAR_BOUNDS = st.sampled_from([-(2**63), -1, 0, 1, 10, 11, 12, 20, ID_MAX, ID_MAX + 1, 2**64 - 1])


@PATIENT
@given(middle=st.lists(st.tuples(NEAR_BOUNDS, NEAR_BOUNDS), max_size=4))
@example(middle=[(12, 12)])
@example(middle=[(15, 11), (13, 15)])
@example(middle=[(12, 11), (12, 11)])
def test_rows_are_linked_and_within_bounds_or_refused(middle: list[tuple[int, int]]) -> None:
    ids = [(11, 10), *middle, (20, 12)]
    rows = [[id_, pid, "k", 0, b""] for id_, pid in ids]
    record = with_rows(*rows, last_id=20)
    try:
        header = decode_header(record)
    except FrameError:
        return
    is_within = all(1 <= id_ <= ID_MAX and 0 <= pid <= ID_MAX for id_, pid in ids)
    expected = [Event(id_, pid, "k", 0, b"") for id_, pid in ids]
    if first_break(10, expected) is None:
        assert is_within
        assert decode_linked_body(record, header) == expected
        return
    with pytest.raises(FrameError) as caught:
        decode_linked_body(record, header)
    assert caught.value.reason == ("link" if is_within else "body")
