"""What is submitted, and what comes back."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from orderchain.errors import OrderError
from orderchain.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


class Order(Struct, frozen=True, gc=False):
    """One order as its client gives it."""

    key: str
    """The client's unique id for the order: 1 to 512 bytes of UTF-8, without NUL."""
    payload: bytes
    """The order itself, at most 256 KiB; never looked into."""
    event_time_ns: int | None = None
    """Nanoseconds since 1970 UTC by the client's clock; None for the time of the batch."""


class Ack(Struct, frozen=True, gc=False):
    """An order's place in the chain. It stands in the database by the time this is returned."""

    id: int
    pid: int


def check_order(order: Order) -> int:
    """Return the bytes of one order. Raises OrderError naming the field."""
    if not isinstance(order, Order):
        raise OrderError("order", order, "an Order")
    if type(order.payload) is not bytes:
        raise OrderError("payload", type(order.payload).__name__, "bytes")
    if len(order.payload) > PAYLOAD_BYTES_MAX:
        raise OrderError(
            "payload", f"{len(order.payload)} bytes", f"at most {PAYLOAD_BYTES_MAX} bytes"
        )
    time_ns = order.event_time_ns
    if time_ns is not None and not (type(time_ns) is int and INT64_MIN <= time_ns <= INT64_MAX):
        raise OrderError("event_time_ns", time_ns, "an integer of 64 bits or None")
    return _check_key(order.key) + len(order.payload)


def _check_key(key: str) -> int:
    """Return the bytes of a key. Raises OrderError."""
    if type(key) is not str:
        raise OrderError("key", type(key).__name__, "str")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise OrderError("key", key, "text that can be written as UTF-8") from None
    if not 1 <= size <= KEY_BYTES_MAX:
        raise OrderError("key", f"{size} bytes", f"1 to {KEY_BYTES_MAX} bytes of UTF-8")
    # PostgreSQL's text cannot hold it: found only at COPY, it would fail the whole batch.
    if "\0" in key:
        raise OrderError("key", key, "text without NUL")
    return size
