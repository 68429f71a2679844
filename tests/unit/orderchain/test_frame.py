"""Frames that are as they should be."""

from __future__ import annotations

import ast
import inspect
import textwrap
from struct import pack_into
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderchain import frame as frame_module
from orderchain import link
from orderchain.event import Event
from orderchain.frame import (
    HEADER_BYTES,
    FrameHeader,
    decode_body,
    decode_header,
    decode_linked_body,
    encode_frame,
)
from orderchain.limits import (
    CHAIN_ID_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    FRAME_ROWS_MAX,
    ID_MAX,
    KEY_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
)

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


def header_of(events: list[Event], **changed: object) -> FrameHeader:
    fields: dict[str, object] = {
        "chain_id": 7,
        "epoch": 3,
        "publisher_epoch": 4,
        "publisher_nonce": bytes(range(16)),
        "first_pid": events[0].pid,
        "first_id": events[0].id,
        "last_id": events[-1].id,
        "count": len(events),
        "seal_before": bytes(32),
    }
    return FrameHeader(**(fields | changed))  # type: ignore[arg-type]


def heartbeat(head: int, epoch: int = 3) -> FrameHeader:
    return FrameHeader(
        chain_id=7,
        epoch=epoch,
        publisher_epoch=max(epoch, 4),
        publisher_nonce=b"n" * 16,
        first_pid=head,
        first_id=head,
        last_id=head,
        count=0,
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
    header = header_of(
        events,
        chain_id=chain_id,
        epoch=epochs[0],
        publisher_epoch=epochs[1],
        publisher_nonce=nonce,
        seal_before=seals[0],
        seal_after=seals[1],
        is_batch_end=is_batch_end,
    )
    record = encode_frame(header, events)
    assert decode_header(record) == header
    assert decode_body(record, header) == events


@pytest.mark.parametrize("head", [0, 1, ID_MAX])
def test_heartbeat_carries_the_head_and_no_body(head: int) -> None:
    record = encode_frame(heartbeat(head), [])
    header = decode_header(record)
    assert header == heartbeat(head)
    assert header.is_heartbeat
    assert len(record) == HEADER_BYTES


def test_frame_with_rows_is_no_heartbeat() -> None:
    events = events_after(0, [(1, "k", 0, b"")])
    assert not decode_header(encode_frame(header_of(events), events)).is_heartbeat


def test_frame_with_the_largest_values_comes_back() -> None:
    events = [
        Event(ID_MAX, ID_MAX - 1, "k" * KEY_BYTES_MAX, 2**63 - 1, bytes(PAYLOAD_BYTES_MAX)),
    ]
    record = encode_frame(header_of(events, chain_id=CHAIN_ID_MAX), events)
    assert len(record) <= FRAME_BYTES_MIN <= FRAME_BYTES_MAX
    assert decode_body(record, decode_header(record)) == events


def test_frame_with_the_most_rows_comes_back() -> None:
    events = events_after(0, [(1, "k", 0, b"")] * FRAME_ROWS_MAX)
    record = encode_frame(header_of(events), events)
    assert len(decode_body(record, decode_header(record))) == FRAME_ROWS_MAX


def with_appended_field(record: bytes, field: bytes) -> bytes:
    """What a later writer would send: the field stands behind ours, the CRC stays last."""
    header = bytearray(record[: HEADER_BYTES - 4] + field)
    pack_into(">H", header, 6, len(header) + 4)
    body = record[HEADER_BYTES:]
    return bytes(header) + crc32(body, crc32(header)).to_bytes(4, "big") + body


@pytest.mark.parametrize("field", [b"\0", b"later field", bytes(1000)])
def test_frame_with_appended_header_field_is_still_read(field: bytes) -> None:
    events = events_after(5, [(1, "a", 1, b"x"), (9, "b", 2, b"y")])
    record = encode_frame(header_of(events), events)
    header = decode_header(with_appended_field(record, field))
    assert header == header_of(events)
    assert decode_body(with_appended_field(record, field), header) == events


def test_frame_with_flag_of_a_later_writer_is_still_read() -> None:
    record = bytearray(encode_frame(heartbeat(9), []))
    record[5] |= 0x80
    record[-4:] = crc32(record[:-4]).to_bytes(4, "big")
    assert decode_header(bytes(record)) == heartbeat(9)


@pytest.mark.parametrize(
    ("hot", "loops"),
    [
        (decode_body, 0),
        (decode_linked_body, 0),
        (frame_module._decode_rows, 0),
        (decode_header, 0),
        (encode_frame, 0),
        (frame_module._checksum, 0),
        # Measured: one pass over the rows is quicker than columns of ids and pids.
        (link.is_linked, 1),
    ],
)
def test_hot_path_loops_over_rows_once_for_the_links(hot: object, loops: int) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(hot)))  # type: ignore[arg-type]
    kinds = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
    assert sum(isinstance(node, kinds) for node in ast.walk(tree)) == loops
