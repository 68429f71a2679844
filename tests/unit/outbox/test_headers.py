from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox import BadRecord, Destination
from outbox.records import (
    CONFIRM_TOKEN,
    CONFIRM_TOPIC,
    DESTINATION,
    MESSAGE_ID,
    OLDEST_UNFINISHED,
    common_headers,
    read_headers,
    record_headers,
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
    told = record_headers(message_id, own, common_headers(CLEARING, None), token)
    assert [value for _, value in told[:4]] == [b"forged"] * 4
    found = read_headers(told)
    assert (found.message_id, found.destination) == (message_id, "clearing")
    assert (found.confirm_topic, found.confirm_token) == ("t.confirms", token)


@pytest.mark.parametrize("value", [b"", b"00" * 15, b"0 " * 16, b"zz" * 16, b"\xff" * 32])
def test_token_that_cannot_be_read_is_none_and_harms_not_the_message(value: bytes) -> None:
    assert read_headers([*GOOD, (CONFIRM_TOKEN, value)]).confirm_token is None


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
