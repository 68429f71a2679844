"""Frames that are as they should be."""

from struct import pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain_kernel.frame import (
    HEADER_BYTES,
    MAC_BYTES,
    FrameHeader,
    decode_body,
    decode_header,
    encode_frame,
    is_signed,
)
from chain_kernel.limits import (
    CHAIN_ID_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    ID_MAX,
    KEY_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
)
from chain_kernel.model import Event
from chain_kernel.testing.memory_chain import frame_header, heartbeat_header
from tests.vectors.frames import mac_of

KEY = bytes(range(32))

PATIENT = settings(deadline=None, print_blob=True)

_rows = st.lists(
    st.tuples(
        st.integers(1, 2**40),
        st.text(min_size=1, max_size=20),
        st.integers(-(2**63), 2**63 - 1),
        st.binary(max_size=50),
    ),
    min_size=1,
    max_size=30,
)


def events_after(pid: int, rows: list[tuple[int, str, int, bytes]]) -> list[Event]:
    events = []
    for step, key, time_ns, payload in rows:
        event = Event(pid + step, pid, key, time_ns, payload)
        events.append(event)
        pid = event.id
    return events


def heartbeat(head: int) -> FrameHeader:
    return heartbeat_header(
        head,
        chain_id=7,
        epoch=3,
        publisher_epoch=4,
        publisher_nonce=b"n" * 16,
        seal_before=b"s" * 32,
    )


@PATIENT
@given(
    pid=st.integers(0, 2**40),
    rows=_rows,
    chain_id=st.integers(1, CHAIN_ID_MAX),
    epochs=st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)).map(sorted),
    nonce=st.binary(min_size=16, max_size=16),
    seals=st.tuples(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32)),
    is_batch_end=st.booleans(),
)
def test_frame_with_any_rows_comes_back_as_it_was(
    pid: int,
    rows: list[tuple[int, str, int, bytes]],
    chain_id: int,
    epochs: list[int],
    nonce: bytes,
    seals: tuple[bytes, bytes],
    is_batch_end: bool,
) -> None:
    events = events_after(pid, rows)
    header = frame_header(
        events,
        chain_id=chain_id,
        epoch=epochs[0],
        publisher_epoch=epochs[1],
        publisher_nonce=nonce,
        seal_before=seals[0],
        seal_after=seals[1],
        is_batch_end=is_batch_end,
    )
    record = encode_frame(header, events, KEY)
    assert decode_header(record) == header
    assert decode_body(record, header) == events
    assert is_signed(record, KEY)


@PATIENT
@given(
    at=st.integers(0, 7), bit=st.integers(0, 7), rows=_rows, key=st.binary(min_size=32, max_size=32)
)
def test_frame_is_signed_with_its_own_key_and_unchanged_alone(
    at: int, bit: int, rows: list[tuple[int, str, int, bytes]], key: bytes
) -> None:
    events = events_after(3, rows)
    record = encode_frame(frame_header(events), events, key)
    assert is_signed(record, key)
    other = bytearray(key)
    other[at] ^= 1 << bit
    assert not is_signed(record, bytes(other))
    for place in (8, HEADER_BYTES - MAC_BYTES - 1, HEADER_BYTES - 1, HEADER_BYTES, len(record) - 1):
        changed = bytearray(record)
        changed[place] ^= 1 << bit
        assert not is_signed(bytes(changed), key), place


def test_body_that_moves_into_the_header_takes_no_mac_with_it() -> None:
    """The last bytes of a payload, which a client chooses, can be no beginning of the header."""
    inner = encode_frame(heartbeat(9), [], KEY)[: HEADER_BYTES - MAC_BYTES]
    inner = inner[:6] + (2 * HEADER_BYTES - MAC_BYTES).to_bytes(2, "big") + inner[8:]
    events = events_after(3, [(1, "k", 0, inner)])
    record = encode_frame(frame_header(events), events, KEY)
    fields, mac = record[: HEADER_BYTES - MAC_BYTES], record[HEADER_BYTES - MAC_BYTES :][:MAC_BYTES]
    body = record[HEADER_BYTES:]
    # The same bytes in the same order, parted elsewhere.
    moved = inner + fields + mac + body[: -len(inner)]
    assert int.from_bytes(moved[6:8], "big") == len(inner + fields + mac)
    assert not is_signed(moved, KEY)


@pytest.mark.parametrize("head", [0, 1, ID_MAX])
def test_heartbeat_carries_the_head_and_no_body(head: int) -> None:
    record = encode_frame(heartbeat(head), [], KEY)
    header = decode_header(record)
    assert header == heartbeat(head)
    assert header.is_heartbeat
    assert len(record) == HEADER_BYTES


def test_frame_with_the_largest_values_comes_back() -> None:
    events = [Event(ID_MAX, ID_MAX - 1, "k" * KEY_BYTES_MAX, 2**63 - 1, bytes(PAYLOAD_BYTES_MAX))]
    record = encode_frame(frame_header(events, chain_id=CHAIN_ID_MAX), events, KEY)
    assert len(record) <= FRAME_BYTES_MIN <= FRAME_BYTES_MAX
    assert decode_body(record, decode_header(record)) == events


def with_appended_field(record: bytes, field: bytes) -> bytes:
    """What a later writer would send: the field comes after ours, the MAC stays last."""
    header = bytearray(record[: HEADER_BYTES - MAC_BYTES] + field)
    pack_into(">H", header, 6, len(header) + MAC_BYTES)
    body = record[HEADER_BYTES:]
    return bytes(header) + mac_of(body, bytes(header), KEY) + body


@pytest.mark.parametrize("field", [b"\0", b"later field", bytes(1000)])
def test_frame_with_appended_header_field_is_still_read(field: bytes) -> None:
    events = events_after(5, [(1, "a", 1, b"x"), (9, "b", 2, b"y")])
    record = encode_frame(frame_header(events), events, KEY)
    assert is_signed(with_appended_field(record, field), KEY)
    header = decode_header(with_appended_field(record, field))
    assert header == frame_header(events)
    assert decode_body(with_appended_field(record, field), header) == events
