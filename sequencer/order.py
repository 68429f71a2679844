"""Orders as they are submitted, and the columns that a page of them is stored as."""

from __future__ import annotations

from itertools import chain as flatten
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orderchain.errors import OrderError
from orderchain.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence


INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


class Order(Struct, frozen=True, gc=False):
    """One order as its client gives it."""

    key: str
    """The client's unique id for the order: 1 to 512 bytes of UTF-8, without NUL."""
    payload: bytes
    """The order itself, at most 256 KiB; never inspected."""
    event_time_ns: int | None = None
    """Nanoseconds since 1970 UTC by the client's clock; None for the time of the batch."""


class Ack(Struct, frozen=True, gc=False):
    """An order's place in the chain. The order is in the database when this is returned."""

    id: int
    pid: int


def check_order(order: Order) -> int:
    """Return the size of one order in bytes. Raises OrderError naming the field."""
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
    """Return the size of a key in bytes. Raises OrderError."""
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


_SEPARATOR: Final = "\0"
"""No key contains it: keys that are joined with it can be split."""


class OrderColumns(Struct, frozen=True, gc=False):
    """Good orders, in their order; all columns have the same length."""

    keys: list[str]
    encoded_keys: list[bytes]
    """The keys as UTF-8."""
    key_sizes: list[int]
    """Bytes of every key."""
    payloads: list[bytes]
    payload_sizes: list[int]
    """Bytes of every payload."""
    times_ns: list[int | None]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def total_bytes(self) -> int:
        """Bytes of all keys and payloads."""
        return sum(self.key_sizes) + sum(self.payload_sizes)


def joined(parts: Sequence[OrderColumns]) -> OrderColumns:
    """Return the orders of all `parts`, one part after the other, without checking any order."""
    return OrderColumns(
        *(
            list(flatten.from_iterable(getattr(part, name) for part in parts))
            for name in OrderColumns.__struct_fields__
        )
    )


def columns_of(orders: Sequence[Order]) -> OrderColumns:
    """Return the columns of `orders`. Raises OrderError for the first bad one.

    Whole columns are tested: bad orders are rare and per-order checks are expensive.
    """
    try:
        columns = _take_apart(orders)
        if _are_good(columns):
            return columns
    except (AttributeError, TypeError, ValueError):
        pass  # the loop below finds the order and its field
    for order in orders:
        check_order(order)
    return _take_apart(orders)


def _take_apart(orders: Sequence[Order]) -> OrderColumns:
    keys = [order.key for order in orders]
    payloads = [order.payload for order in orders]
    # One call for all: encoding them one by one costs twice as much.
    encoded = _SEPARATOR.join(keys).encode().split(_SEPARATOR.encode()) if keys else []
    return OrderColumns(
        keys,
        encoded,
        list(map(len, encoded)),
        payloads,
        list(map(len, payloads)),
        [order.event_time_ns for order in orders],
    )


def _are_good(columns: OrderColumns) -> bool:
    return (
        # A key that contains a separator is split into two.
        len(columns.encoded_keys) == len(columns.keys)
        and min(columns.key_sizes) > 0
        and max(columns.key_sizes) <= KEY_BYTES_MAX
        and max(columns.payload_sizes) <= PAYLOAD_BYTES_MAX
        and set(map(type, columns.payloads)) == {bytes}
        and _are_times(columns.times_ns)
    )


def _are_times(times: list[int | None]) -> bool:
    """Return whether every time is None, or an integer of 64 bits."""
    kinds = set(map(type, times))
    if not kinds <= {int, type(None)}:
        return False
    known = [time_ns for time_ns in times if time_ns is not None] if len(kinds) > 1 else times
    return kinds == {type(None)} or (min(known) >= INT64_MIN and max(known) <= INT64_MAX)  # type: ignore[type-var,operator]
