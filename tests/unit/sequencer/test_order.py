from typing import Any

import numpy as np
import pytest

from chain_kernel.errors import OrderError
from chain_kernel.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from sequencer.order import Ack, Acks, Order, check_order, columns_of


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (Order("", b""), "key was '0 bytes'"),
        (Order("x" * (KEY_BYTES_MAX + 1), b""), "key was '513 bytes'"),
        (Order("é" * KEY_BYTES_MAX, b""), "key was '1024 bytes'"),
        (Order("a\0b", b""), "without NUL"),
        (Order("\ud800", b""), "UTF-8"),
        (Order(7, b""), "key was 'int'"),  # type: ignore[arg-type]
        (Order(np.str_("a"), b""), "key was 'str_'"),  # no encoder of a frame takes it
        (Order("a", "text"), "payload was 'str'"),  # type: ignore[arg-type]
        (Order("a", bytearray(b"x")), "payload was 'bytearray'"),  # type: ignore[arg-type]
        (Order("a", None), "payload was 'NoneType'"),  # type: ignore[arg-type]
        (Order("a", bytes(PAYLOAD_BYTES_MAX + 1)), "payload was '262145 bytes'"),
        (Order("a", b"", 2**63), "event_time_ns"),
        (Order("a", b"", 1.5), "event_time_ns"),  # type: ignore[arg-type]
        (Order("a", b"", True), "event_time_ns"),
        (("a", b"x", None), "an Order"),
        (None, "an Order"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_check_with_one_bad_order_names_its_field(order: Any, message: str, place: int) -> None:
    orders = [Order("good", b"1"), Order("good too", b"2")]
    orders.insert(place, order)
    with pytest.raises(OrderError, match=message):
        columns_of(orders)


@pytest.mark.parametrize("keys", [["a", "é", "x#1"], ["k" * KEY_BYTES_MAX, "\U0010ffff"]])
def test_columns_hold_each_order_in_its_place(keys: list[str]) -> None:
    orders = [Order(key, bytes(n), n or None) for n, key in enumerate(keys)]
    columns = columns_of(orders)
    assert list(map(Order, columns.keys, columns.payloads, columns.times_ns)) == orders
    assert columns.total_bytes == sum(map(check_order, orders))
    assert columns.times_at(9) == [order.event_time_ns or 9 for order in orders]


def test_columns_whose_orders_all_have_times_hold_them_packed_too() -> None:
    times = [-(2**63), 0, 2**63 - 1]
    columns = columns_of([Order("k", b"", time_ns) for time_ns in times])
    assert list(columns.times_at(9)) == times


def test_acks_are_read_like_a_list_of_them() -> None:
    expected = [Ack(5, 2), Ack(6, 5), Ack(7, 6)]
    acks = Acks(2, range(5, 8))
    assert acks == expected
    assert [acks[at] for at in (0, 1, 2, -1, -3)] == [expected[at] for at in (0, 1, 2, -1, -3)]
    assert acks[1:] == expected[1:]
    assert [acks, len(acks), repr(acks)] == [expected, 3, repr(expected)]
    assert Ack(6, 5) in acks
    assert acks != expected[:2]
    with pytest.raises(IndexError):
        acks[3]
