from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from chain_kernel.errors import SettingError
from outbox import Destination, Message, MessageError
from outbox.destination import HEADERS_MAX, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from outbox.message import MessageIds, check_message, check_new_message, traced
from tests.builders.spans import recorded_spans

MILLISECOND = 1_000_000


def message(**fields: Any) -> Message:
    (message_id,) = MessageIds().draw(1)
    return Message(**{"message_id": message_id, "destination": "d", "payload": b"", **fields})


@given(st.lists(st.tuples(st.integers(0, 2**63), st.integers(1, 50)), max_size=20))
def test_ids_rise_whatever_the_clock_does(draws: list[tuple[int, int]]) -> None:
    times = iter([time for time, _ in draws])
    ids = MessageIds(wall_ns=lambda: next(times))
    drawn = [one for _, count in draws for one in ids.draw(count)]
    assert drawn == sorted(set(drawn))
    assert all((one.version, one.variant) == (7, "specified in RFC 4122") for one in drawn)


def test_id_begins_with_its_millisecond() -> None:
    ids = MessageIds(wall_ns=lambda: 0x0123_4567_89AB * MILLISECOND)
    first, second = ids.draw(2)
    assert first.hex[:16] == "0123456789ab7000"
    assert second.hex[:16] == "0123456789ab7001"
    assert ids.draw(5_000)[-1].hex[:12] == "0123456789ac"  # the counter carries over


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"message_id": "no"}, "message_id"),
        ({"destination": ""}, "destination"),
        ({"destination": "d" * 101}, "destination"),
        ({"destination": "\n"}, "destination"),
        ({"destination": 3}, "destination"),
        ({"payload": "text"}, "payload"),
        ({"payload": bytes(PAYLOAD_BYTES_MAX + 1)}, "payload"),
        ({"key": ""}, "key"),
        ({"key": "k" * (KEY_BYTES_MAX + 1)}, "key"),
        ({"key": "\0"}, "key"),
        ({"key": "\ud800"}, "key"),
        ({"key": b"bytes"}, "key"),
        ({"headers": ["a"]}, "headers"),
        ({"headers": {str(n): "" for n in range(HEADERS_MAX + 1)}}, "headers"),
        ({"headers": {"a": 1}}, "header a"),
        ({"headers": {"a": "\0"}}, "header a"),
        ({"headers": {"": "a"}}, "header name"),
        ({"headers": {"ä": "a"}}, "header name"),
        ({"headers": {1: "a"}}, "header name"),
        ({"headers": {"Orderchain-message-id": "a"}}, "header name"),
        ({"headers": {"a": "x" * 9_000, "b": "x" * 9_000}}, "headers"),
    ],
)
def test_message_that_breaks_a_rule_is_refused_by_its_field(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(MessageError) as caught:
        check_message(message(**fields))
    assert caught.value.field == field
    assert len(str(caught.value)) < 300


VERSION_4 = UUID("5f0c1d8e-37a4-4b5e-9d3b-0c3c8d5a1f42")
NO_VARIANT = UUID(int=7 << 76)


@pytest.mark.parametrize("message_id", [VERSION_4, NO_VARIANT, UUID(int=2**128 - 1)])
def test_id_that_is_no_uuidv7_is_refused(message_id: UUID) -> None:
    check_new_message(message())
    with pytest.raises(MessageError, match="expected a UUIDv7") as caught:
        check_new_message(message(message_id=message_id))
    assert caught.value.field == "message_id"


def test_message_at_its_bounds_is_taken() -> None:
    headers = {str(n): "ä" for n in range(HEADERS_MAX)}
    for fields in (
        {"payload": bytes(PAYLOAD_BYTES_MAX), "key": "ä" * 256, "headers": headers},
        {"message_id": UUID(int=0), "headers": {}},
    ):
        assert refusal_of(message(**fields)) is None


def refusal_of(given: Message) -> MessageError | None:
    try:
        check_message(given)
    except MessageError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"consumers": ()}, "consumers"),
        ({"consumers": ("a", "a")}, "consumers"),
        ({"consumers": ("ä",)}, "consumers"),
        ({"confirm": "none"}, "consumers"),
        ({"topic": "a b"}, "topic"),
        ({"confirm_topic": "a b"}, "topic"),
        ({"name": "a\nb"}, "name"),
        ({"resend_seconds": 60.0, "resend_seconds_max": 59.0}, "resend_seconds_max"),
    ],
)
def test_destination_that_contradicts_itself_is_refused(
    settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(SettingError) as caught:
        Destination(**{"name": "d", "topic": "t", "consumers": ("a",), **settings})
    assert caught.value.field == field


def test_destination_out_of_bounds_is_refused_when_it_comes_from_outside() -> None:
    with pytest.raises(msgspec.ValidationError, match="tries_max"):
        msgspec.convert({"name": "d", "topic": "t", "confirm": "none", "tries_max": 0}, Destination)


def test_destination_has_a_delivery_for_each_consumer_or_a_single_one() -> None:
    both = Destination(name="d", topic="t", consumers=("a", "b"))
    assert (both.deliveries, both.confirm_topic) == (("a", "b"), "t.confirms")
    alone = Destination(name="d", topic="t", confirm="none")
    assert (alone.deliveries, alone.confirm_topic) == (("",), "")


@pytest.mark.parametrize(
    ("own", "carried"),
    [
        (None, {"traceparent"}),
        ({"a": "b"}, {"a", "traceparent"}),
        ({"traceparent": "its own"}, {"traceparent"}),
        ({str(n): "" for n in range(HEADERS_MAX)}, {str(n) for n in range(HEADERS_MAX)}),
    ],
)
def test_message_gets_the_current_trace_where_it_has_room_and_none_of_its_own(
    own: dict[str, str] | None, carried: set[str]
) -> None:
    given = message(headers=own)
    with recorded_spans(), trace.get_tracer("a service").start_as_current_span("business"):
        (traced_one,) = traced([given])
    assert set(traced_one.headers or {}) == carried
    assert {**(traced_one.headers or {}), **(own or {})} == traced_one.headers
    assert traced([given]) == [given]  # without a trace


@pytest.mark.parametrize("fields", [{"headers": ["a"]}, {"headers": {"a": 1}}, {"payload": 1}])
def test_message_that_is_refused_is_refused_with_a_trace_too(fields: dict[str, Any]) -> None:
    given = message(**fields)
    with recorded_spans(), trace.get_tracer("a service").start_as_current_span("business"):
        assert traced([given]) == [given]
