"""Frames that are not as they should be: a `FrameError`, never another error, never other rows."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
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
from chain_kernel.model import Event, first_break, is_linked
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
    """The header of a frame of the term. Raises FrameError, with `mac` for one of nobody's."""
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


# ------------------------------------------------------------------------------ damage on the way


@pytest.mark.parametrize("record", [None, b""])
def test_frame_without_value_is_refused(record: bytes | None) -> None:
    assert refusal_of(record) == "empty"


def test_frame_cut_off_anywhere_is_refused() -> None:
    for size in range(len(FRAME)):
        assert refusal_of(FRAME[:size]) in REASONS, size


def test_heartbeat_cut_off_anywhere_is_refused() -> None:
    zero = {"first_pid": 20, "first_id": 20, "last_id": 20, "count": 0}
    record = encode_frame(msgspec.structs.replace(HEADER, **zero), [], KEY)
    for size in range(1, HEADER_BYTES):
        with pytest.raises(FrameError):
            decode_header(record[:size])


def test_frame_with_any_single_bit_flipped_is_refused() -> None:
    for bit in range(8 * len(FRAME)):
        at = bit // 8
        record = with_bytes(at, bytes([FRAME[at] ^ 1 << bit % 8]))
        assert refusal_of(record) in REASONS, bit


@pytest.mark.parametrize("extra", [b"\0", b"\xc0", FRAME])
def test_frame_with_trailing_bytes_is_refused(extra: bytes) -> None:
    assert refusal_of(FRAME + extra) == "length"


def test_frame_with_trailing_bytes_in_its_body_is_refused() -> None:
    assert refusal_of(with_body(FRAME[HEADER_BYTES:] + b"\0")) == "body"


@PATIENT
@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: FRAME[:8] + tail))
def test_frame_of_random_bytes_is_refused(record: bytes) -> None:
    refusal_of(record)


@PATIENT
@given(at=st.integers(0, len(FRAME) - 1), value=st.binary(min_size=1, max_size=9))
def test_frame_with_damage_that_the_mac_covers_is_refused_or_within_bounds(
    at: int, value: bytes
) -> None:
    record = with_bytes(at, value)[: len(FRAME)]
    if record[6:8] == FRAME[6:8]:
        record = signed(record)
    try:
        header = decode_header(record)
        events = decode_body(record, header)
    except FrameError:
        return
    assert len(events) == header.count
    assert all(1 <= event.id <= ID_MAX and 0 <= event.pid <= ID_MAX for event in events)


# ------------------------------------------------------------------------------- foreign or lying


@pytest.mark.parametrize("magic", [b"\0\0\0\0", b"ochn", b'{"id', b"OCHM"])
def test_frame_with_foreign_magic_is_refused(magic: bytes) -> None:
    assert refusal_of(signed(with_bytes(0, magic))) == "magic"


@pytest.mark.parametrize("record", [b'{"id": 1, "pid": 0}', b"garbage", b"\0" * 500])
def test_frame_with_foreign_content_is_refused(record: bytes) -> None:
    assert refusal_of(record) == "magic"


@pytest.mark.parametrize(
    ("version", "older"), [(0, "sequencer"), (1, "sequencer"), (3, "receiver"), (255, "receiver")]
)
def test_frame_with_unknown_version_says_what_to_upgrade(version: int, older: str) -> None:
    shown = f"^version: was {version}, expected 2: upgrade the {older}$"
    with pytest.raises(FrameError, match=shown) as caught:
        decode_header(signed(with_bytes(4, bytes([version]))))
    assert caught.value.reason == "version"


@pytest.mark.parametrize("header_bytes", [0, 7, 8, HEADER_BYTES - 1])
def test_frame_with_header_too_short_is_refused(header_bytes: int) -> None:
    record = with_bytes(6, struct.pack(">H", header_bytes))
    record = record[:16] + struct.pack(">I", len(FRAME) - header_bytes) + record[20:]
    assert refusal_of(record) == "length"


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
    "field", [{"first_pid": 9}, {"first_id": 12}, {"last_id": 21}, {"count": 2}, {"count": 4}]
)
def test_header_that_lies_about_its_rows_is_refused(field: dict[str, int]) -> None:
    record = with_body(FRAME[HEADER_BYTES:], **field)
    assert decode_header(record).chain_id == HEADER.chain_id
    assert refusal_of(record) == "body"


@pytest.mark.parametrize("field", ["first_pid", "first_id", "last_id"])
def test_heartbeat_with_differing_ids_is_refused(field: str) -> None:
    ids = {"first_pid": 20, "first_id": 20, "last_id": 20} | {field: 19}
    header = msgspec.structs.replace(HEADER, count=0, **ids)
    with pytest.raises(FrameError, match="bounds"):
        decode_header(encode_frame(header, [], KEY))


def test_heartbeat_with_rows_is_refused() -> None:
    header = msgspec.structs.replace(HEADER, count=0, first_pid=20, first_id=20, last_id=20)
    with pytest.raises(FrameError, match="bounds"):
        decode_header(encode_frame(header, EVENTS, KEY))


def test_heartbeat_has_no_rows_to_decode() -> None:
    header = msgspec.structs.replace(HEADER, count=0, first_pid=20, first_id=20, last_id=20)
    with pytest.raises(FrameError, match="body"):
        decode_body(encode_frame(header, [], KEY), header)


# ----------------------------------------------------------------------------------- hostile rows

_ROW = [11, 10, "a", 1, b"x"]
_ONE = {"first_pid": 10, "first_id": 11, "last_id": 11}


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("value", ["11", b"11", 11.0, None, True, -1, 2**63, 2**64 - 1, [11]])
def test_row_with_unfit_id_or_pid_is_refused(position: int, value: object) -> None:
    row = [*_ROW[:position], value, *_ROW[position + 1 :]]
    assert refusal_of(with_rows(row, **_ONE)) == "body"


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("value", ["11", 11.0, None, -1, 2**63, 2**64 - 1, -(2**63)])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_any_row_with_unfit_id_or_pid_is_refused(position: int, value: object, at: int) -> None:
    rows: list[list[object]] = [[11, 10, "a", 1, b""], [12, 11, "b", 2, b""], [20, 12, "c", 3, b""]]
    rows[at][position] = value
    assert refusal_of(with_rows(*rows)) == "body"


NEAR_BOUNDS = st.sampled_from([-(2**63), -1, 0, 1, 10, 11, 12, 20, ID_MAX, ID_MAX + 1, 2**64 - 1])


@PATIENT
@given(middle=st.lists(st.tuples(NEAR_BOUNDS, NEAR_BOUNDS), max_size=4))
def test_rows_between_a_true_first_and_last_are_linked_and_within_bounds_or_refused(
    middle: list[tuple[int, int]],
) -> None:
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


def test_row_with_id_zero_is_refused() -> None:
    assert refusal_of(with_rows([0, 0, "a", 1, b"x"], **_ONE)) == "body"


@pytest.mark.parametrize(
    "row",
    [
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


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_row_with_bad_utf8_is_refused(text: bytes) -> None:
    key = bytes([0xA0 | len(text)]) + text
    body = b"\x91\x95\x0b\x0a" + key + b"\x01\xc4\x00"
    assert refusal_of(with_body(body, count=1, **_ONE)) == "body"


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\x01", b"\x81", b"\xdc\x00\x01"])
@pytest.mark.parametrize("before", [b"", b"\x91", b"\x91\x95", b"\x91\x95\x0b\x0a\xa1k\x01"])
def test_body_nested_100000_deep_is_refused(before: bytes, opening: bytes) -> None:
    body = before + opening * 100_000
    assert refusal_of(with_body(body, count=1, **_ONE)) == "body"


@pytest.mark.parametrize("body", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x90", b"\0"])
def test_body_that_announces_other_than_it_holds_is_refused(body: bytes) -> None:
    assert refusal_of(with_body(body)) == "body"


def test_body_of_fifty_million_small_ints_is_refused_unread() -> None:
    count = 50_000_000
    record = with_body(b"\xdd" + struct.pack(">I", count) + bytes(count))
    tracemalloc.start()
    try:
        assert refusal_of(record) == "oversized"
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_body_of_small_ints_below_the_size_limit_is_refused_without_objects() -> None:
    count = FRAME_BYTES_MAX - HEADER_BYTES - 5
    record = with_body(b"\xdd" + struct.pack(">I", count) + bytes(count))
    assert len(record) == FRAME_BYTES_MAX
    tracemalloc.start()
    try:
        assert refusal_of(record) == "body"
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        ([[11, 10], [12, 12], [20, 12]], 1),  # pid = id
        ([[11, 10], [12, 13], [20, 12]], 1),  # pid > id
        ([[11, 10], [15, 11], [13, 15], [20, 13]], 2),  # ids fall
        ([[11, 10], [12, 11], [20, 13]], 2),  # a row is missing
        ([[11, 10], [13, 12], [12, 11], [20, 13]], 1),  # out of order
        ([[11, 10], [12, 11], [12, 11], [20, 12]], 2),  # twice
    ],
)
def test_rows_that_are_not_linked_are_found_by_the_link_rule(
    rows: list[list[int]], index: int
) -> None:
    record = with_rows(*([*ids, "k", 0, b""] for ids in rows))
    events = decode_body(record, decode_header(record))
    assert not is_linked(10, events)
    assert first_break(10, events) == index
