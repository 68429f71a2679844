"""Orders as columns: each order is looked at once, and whoever needs its parts finds them there."""

from __future__ import annotations

from itertools import chain as flatten
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orderchain.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from sequencer.order import INT64_MAX, INT64_MIN, check_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequencer.order import Order

_SEPARATOR: Final = "\0"
"""Stands in no key: keys that are joined with it can be taken apart again."""


class OrderColumns(Struct, frozen=True, gc=False):
    """Good orders, in their order; the columns are of equal length."""

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
    """Return the orders of all `parts`, one part behind the other, without a look at any order."""
    return OrderColumns(
        *(
            list(flatten.from_iterable(getattr(part, name) for part in parts))
            for name in OrderColumns.__struct_fields__
        )
    )


def columns_of(orders: Sequence[Order]) -> OrderColumns:
    """Return the columns of `orders`. Raises OrderError for the first bad one.

    Whole columns are tested, since a bad order is rare and a test an order is dear.
    """
    try:
        columns = _take_apart(orders)
        if _are_good(columns):
            return columns
    except (AttributeError, TypeError, ValueError):
        pass  # which order it is, and which field, is told below
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
        # A key with a separator in it makes two of itself.
        len(columns.encoded_keys) == len(columns.keys)
        and min(columns.key_sizes) > 0
        and max(columns.key_sizes) <= KEY_BYTES_MAX
        and max(columns.payload_sizes) <= PAYLOAD_BYTES_MAX
        and set(map(type, columns.payloads)) == {bytes}
        and _are_times(columns.times_ns)
    )


def _are_times(times: list[int | None]) -> bool:
    """Say whether every time is None, or an integer of 64 bits."""
    kinds = set(map(type, times))
    if not kinds <= {int, type(None)}:
        return False
    known = [time_ns for time_ns in times if time_ns is not None] if len(kinds) > 1 else times
    return kinds == {type(None)} or (min(known) >= INT64_MIN and max(known) <= INT64_MAX)  # type: ignore[type-var,operator]
