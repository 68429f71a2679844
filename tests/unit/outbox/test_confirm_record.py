from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox import BadRecord, Confirm, Progress
from outbox.destination import CONFIRM_RECORD_BYTES_MAX, CONFIRMS_MAX
from outbox.records import CONFIRM_VERSION, ConfirmRecord, decode_confirms, encode_confirms

INT64 = st.integers(0, 2**63 - 1)
PARTITION = st.integers(0, 2**31 - 1)
CONFIRMS = st.lists(
    st.builds(
        Confirm,
        st.binary(min_size=16, max_size=16),
        st.integers(0, 1),
        INT64,
        PARTITION,
        INT64,
        st.binary(min_size=16, max_size=16),
    )
)
PROGRESS = st.lists(
    st.builds(
        Progress, st.text("abc.-_", min_size=1, max_size=249), PARTITION, INT64
    )
)  # fmt: skip
ONE = [bytes(16), 0, 0, 0, 0, bytes(16)]


@given(st.text("ab c", min_size=1, max_size=100), CONFIRMS, PROGRESS)
def test_record_comes_back_as_it_was_given(
    consumer: str, confirms: list[Confirm], progress: list[Progress]
) -> None:
    value = encode_confirms(consumer, confirms, progress)
    assert decode_confirms(value) == ConfirmRecord(CONFIRM_VERSION, consumer, confirms, progress)


@given(st.binary(max_size=300))
def test_garbage_raises_nothing_but_bad_record(value: bytes) -> None:
    with pytest.raises(BadRecord):
        decode_confirms(value)


@given(CONFIRMS, PROGRESS, st.integers(0), st.binary(min_size=1, max_size=3))
def test_record_with_a_changed_byte_is_read_or_refused(
    confirms: list[Confirm], progress: list[Progress], at: int, noise: bytes
) -> None:
    value = bytearray(encode_confirms("a", confirms, progress))
    at %= len(value)
    value[at : at + len(noise)] = noise
    try:
        record = decode_confirms(bytes(value))
    except BadRecord:
        return
    assert all(
        len(confirm.message_id) == 16 and confirm.kind in {0, 1} for confirm in record.confirms
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "empty"),
        (bytes(CONFIRM_RECORD_BYTES_MAX + 1), "size"),
        (msgspec.msgpack.encode([2, "a", [], []]), "version"),
        (msgspec.msgpack.encode([1, "a\n", [], []]), "consumer"),
        (msgspec.msgpack.encode([1, "a", [], [["t\0", 0, 0]]]), "topic"),
        (msgspec.msgpack.encode([1, "", [], []]), "content"),
        (msgspec.msgpack.encode([1, "a", [], [], 5]), "content"),
        (msgspec.msgpack.encode([1, "a", [[*ONE, 1]], []]), "content"),
        (msgspec.msgpack.encode([1, "a", [[bytes(15), 0, 0, 0, 0]], []]), "content"),
        (msgspec.msgpack.encode([1, "a", [[bytes(16), 2, 0, 0, 0]], []]), "content"),
        (msgspec.msgpack.encode([1, "a", [[bytes(16), 0, 2**63, 0, 0]], []]), "content"),
        (msgspec.msgpack.encode([1, "a", [[bytes(16), 0, 0, -1, 0]], []]), "content"),
        (msgspec.msgpack.encode([1, "a", [ONE] * (CONFIRMS_MAX + 1), []]), "content"),
        (b"\x94\x01\xa1\xff\x90\x90", "content"),
        (b"\x91" * 5_000, "content"),
    ],
)
def test_record_that_breaks_a_bound_is_refused_by_its_reason(
    value: bytes | None, reason: str
) -> None:
    with pytest.raises(BadRecord) as caught:
        decode_confirms(value)
    assert caught.value.reason == reason


def test_record_of_the_most_confirms_is_below_the_size_that_is_read() -> None:
    most = [Confirm(bytes(16), 1, 2**63 - 1, 2**31 - 1, 2**63 - 1, bytes(16))] * CONFIRMS_MAX
    assert len(decode_confirms(encode_confirms("a" * 100, most)).confirms) == CONFIRMS_MAX
