from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.callback.config import AskRules, Reply, after_ask
from outbox.errors import BadRecord
from outbox.records import CHECK_RECORD_BYTES_MAX, decode_checks, encode_checks

NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=100)


@given(
    NAMES,
    st.integers(0, 2**63 - 1),
    st.lists(NAMES, min_size=1, max_size=5),
    st.lists(st.uuids(), min_size=1, max_size=50),
)
def test_record_is_read_as_it_was_written(
    sender: str, due_ns: int, consumers: list[str], ids: list[object]
) -> None:
    record = decode_checks(encode_checks(sender, due_ns, consumers, ids))  # type: ignore[arg-type]
    assert (record.sender, record.due_unix_ns, record.consumers) == (sender, due_ns, consumers)
    assert record.message_ids == [each.bytes for each in ids]  # type: ignore[attr-defined]


@given(st.binary(max_size=300))
def test_noise_is_refused_and_raises_nothing_else(value: bytes) -> None:
    with pytest.raises(BadRecord):
        decode_checks(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "empty"),
        (b"\x00" * (CHECK_RECORD_BYTES_MAX + 1), "size"),
        (msgspec.msgpack.encode([2, "a", 0, ["c"], [bytes(16)]]), "version"),
        (msgspec.msgpack.encode([1, "a", 0, [], [bytes(16)]]), "content"),
        (msgspec.msgpack.encode([1, "a", 0, ["c"], []]), "content"),
        (msgspec.msgpack.encode([1, "a", 0, ["c"], [bytes(15)]]), "content"),
        (msgspec.msgpack.encode([1, "a", -1, ["c"], [bytes(16)]]), "content"),
        (msgspec.msgpack.encode([1, "a", 2**63, ["c"], [bytes(16)]]), "content"),
        (msgspec.msgpack.encode([1, "a\x00", 0, ["c"], [bytes(16)]]), "name"),
        (msgspec.msgpack.encode([1, "a", 0, ["\u00e9"], [bytes(16)]]), "name"),
        (b"\x91" * 5_000, "content"),
    ],
)
def test_bad_record_is_refused_with_a_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(BadRecord) as caught:
        decode_checks(value)
    assert caught.value.reason == reason


def test_question_is_asked_again_after_doubling_times_until_it_is_ended() -> None:
    rules = AskRules(again_seconds=300, again_seconds_max=1_000, unanswered_seconds=10)
    told = [after_ask(rules, count, Reply.SENT) for count in range(4)]
    assert [each.again_seconds for each in told] == [300, 600, 1_000, 1_000]
    assert [each.ask_count for each in told] == [1, 2, 3, 4]
    silent = after_ask(rules, 2, None)
    assert (silent.is_ended, silent.ask_count, silent.again_seconds) == (False, 2, 10)
    assert after_ask(rules, 0, Reply.ENDED).is_ended
