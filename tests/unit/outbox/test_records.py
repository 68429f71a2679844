"""Headers, confirms, their proofs and checks, byte by byte: others make and read them, too."""

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox import BadRecord, Confirm, Destination, Progress
from outbox.destination import CONFIRM_RECORD_BYTES_MAX, CONFIRMS_MAX
from outbox.record_mac import common_hash, destination_key, record_mac
from outbox.records import (
    CHECK_RECORD_BYTES_MAX,
    CONFIRM_TOKEN,
    CONFIRM_TOPIC,
    CONFIRM_VERSION,
    DESTINATION,
    MAC,
    MESSAGE_ID,
    OLDEST_UNFINISHED,
    ConfirmRecord,
    common_headers,
    decode_checks,
    decode_confirms,
    encode_checks,
    encode_confirms,
    is_proven,
    proof_of,
    read_headers,
    record_headers,
    token_of,
)

CLEARING = Destination(name="clearing", topic="t", consumers=("a",))
NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=100)
GOOD = [
    (MESSAGE_ID, b"01a1ff0d-695f-770f-a7aa-0b3690befd76"),
    (DESTINATION, b"clearing"),
]


@given(
    st.uuids(),
    st.none() | st.uuids(),
    st.dictionaries(NAMES.filter(lambda name: not name.startswith("orderchain-")), st.text()),
)
def test_headers_come_back_as_they_were_given(
    message_id: object, oldest: object, own: dict[str, str]
) -> None:
    common = common_headers(CLEARING, oldest)  # type: ignore[arg-type] # hypothesis has no UUID
    found = read_headers(record_headers(message_id, own, common))  # type: ignore[arg-type]
    assert (found.message_id, found.oldest_unfinished) == (message_id, oldest)
    assert (found.destination, found.confirm_topic) == ("clearing", "t.confirms")
    assert found.own == {name: value.encode() for name, value in own.items()}


def test_own_headers_come_first_so_that_ours_cannot_be_overridden() -> None:
    """Past the checks, as from a row that was stored without them."""
    message_id, token = UUID(int=7), bytes(range(16))
    own = {name: "forged" for name in (MESSAGE_ID, DESTINATION, CONFIRM_TOPIC, CONFIRM_TOKEN)}
    shown = record_headers(message_id, own, common_headers(CLEARING, None), token)
    assert [value for _, value in shown[:4]] == [b"forged"] * 4
    found = read_headers(shown)
    assert (found.message_id, found.destination) == (message_id, "clearing")
    assert (found.confirm_topic, found.confirm_token) == ("t.confirms", token)


@pytest.mark.parametrize("value", [b"", b"00" * 15, b"0 " * 16, b"zz" * 16, b"\xff" * 32])
def test_token_that_cannot_be_read_is_none_and_harms_not_the_message(value: bytes) -> None:
    assert read_headers([*GOOD, (CONFIRM_TOKEN, value)]).confirm_token is None


def test_headers_without_a_value_are_empty_and_ours_are_as_if_they_were_missing() -> None:
    """Kafka allows them, and so may others who write to the topic."""
    ours = [(name, None) for name in (OLDEST_UNFINISHED, CONFIRM_TOPIC, CONFIRM_TOKEN, MAC)]
    found = read_headers([*GOOD, *ours, ("trace", None)])
    assert found == read_headers([*GOOD, ("trace", b"")])
    assert found.own == {"trace": b""}
    assert not found.is_made_with((bytes(32),), None, None)


def test_headers_of_a_destination_without_confirm_name_no_topic_for_it() -> None:
    quiet = Destination(name="q", topic="t", confirm="none")
    assert common_headers(quiet, None) == [(DESTINATION, b"q")]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        GOOD[:1],
        GOOD[1:],
        [(MESSAGE_ID, b"no"), GOOD[1]],
        [(MESSAGE_ID, b"\xff" * 36), GOOD[1]],
        [GOOD[0], (DESTINATION, b"")],
        [GOOD[0], (DESTINATION, b"\n")],
        [GOOD[0], (DESTINATION, b"d" * 101)],
        [*GOOD, (OLDEST_UNFINISHED, b"1")],
        [*GOOD, (CONFIRM_TOPIC, b"t" * 250)],
        [*GOOD, *[("a", b"")] * 1_000],
    ],
)
def test_headers_of_somebody_else_are_refused(headers: list[tuple[str, bytes]]) -> None:
    with pytest.raises(BadRecord, match=r"^headers"):
        read_headers(headers)


@given(st.lists(st.tuples(st.text() | st.sampled_from([MESSAGE_ID, DESTINATION]), st.binary())))
def test_headers_of_garbage_raise_nothing_but_bad_record(
    headers: list[tuple[str, bytes]],
) -> None:
    with pytest.raises(BadRecord):
        read_headers(headers)


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
        (msgspec.msgpack.encode([1, "a", [[*ONE, 1]], []]), "content"),
        (msgspec.msgpack.encode([1, "a", [ONE] * (CONFIRMS_MAX + 1), []]), "content"),
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


KEY = bytes(range(32))
ID_BYTES = bytes(range(16))
TOKEN = bytes.fromhex("e6d0ed1db9b6d050d78e02ffd6950930")
PROOF = bytes.fromhex("591a7c6a0b970ad79289b3d7d7be05cc")
DESTINATION_KEY = "1d8c6a66d39cc7a5712399d71bfe1f3167b29d2fae3bf9570983c0cccd53f0e9"
MAC_OF_ALL = "e3decbe92f64521f6bd8eafba5686c4c"
MAC_OF_LITTLE = "7b86940cb3b2636a2560e19865acf3ea"
MAC_OF_NOTHING = "720c109d260e604017cd105f88c2bc40"


def test_token_and_proof_are_those_of_the_vectors() -> None:
    assert token_of(KEY, ID_BYTES) == TOKEN
    assert proof_of(TOKEN, "clearing", 1, 2**60) == PROOF
    assert is_proven(KEY, ID_BYTES, "clearing", 1, 2**60, PROOF)


def test_mac_is_that_of_the_vectors() -> None:
    key, token = destination_key(KEY, "clearing"), TOKEN.hex().encode()
    assert key.hex() == DESTINATION_KEY
    common = common_hash(key, b"clearing", None, b"t.confirms")
    assert record_mac(common, ID_BYTES, token, b"k", [("a", b"1")], b"payload").hex() == MAC_OF_ALL
    assert record_mac(common, ID_BYTES, token, None, [], b"payload").hex() == MAC_OF_LITTLE
    bare = common_hash(key, b"clearing", None, None)
    assert record_mac(bare, ID_BYTES, None, None, [], b"").hex() == MAC_OF_NOTHING


SHORT, MAYBE = st.binary(max_size=3), st.none() | st.binary(max_size=3)
OWN = st.lists(st.tuples(st.text(max_size=3), SHORT), max_size=3)
SIGNED = st.tuples(st.tuples(SHORT, MAYBE, MAYBE), st.tuples(MAYBE, MAYBE, OWN, SHORT))


@given(SIGNED, SIGNED)
def test_two_records_of_one_id_share_a_mac_only_if_they_are_the_same(one: Any, other: Any) -> None:
    """No byte may move from one part to the next."""
    macs = [record_mac(common_hash(KEY, *ours), ID_BYTES, *rest) for ours, rest in (one, other)]
    assert (macs[0] == macs[1]) == (one == other)


@pytest.mark.parametrize(
    ("key", "message_id", "consumer", "kind", "until"),
    [
        (bytes(32), ID_BYTES, "clearing", 1, 2**60),
        (KEY, bytes(16), "clearing", 1, 2**60),
        (KEY, ID_BYTES, "ledger", 1, 2**60),
        (KEY, ID_BYTES, "clearing", 0, 2**60),
        (KEY, ID_BYTES, "clearing", 1, 2**60 + 1),
    ],
)
def test_proof_is_of_one_message_one_consumer_and_one_word(
    key: bytes, message_id: bytes, consumer: str, kind: int, until: int
) -> None:
    assert not is_proven(key, message_id, consumer, kind, until, PROOF)


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
        (msgspec.msgpack.encode([1, "a", 0, ["c"], [bytes(15)]]), "content"),
        (msgspec.msgpack.encode([1, "a", 2**63, ["c"], [bytes(16)]]), "content"),
        (msgspec.msgpack.encode([1, "a", 0, ["\u00e9"], [bytes(16)]]), "name"),
        (b"\x91" * 5_000, "content"),
    ],
)
def test_bad_record_is_refused_with_a_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(BadRecord) as caught:
        decode_checks(value)
    assert caught.value.reason == reason
