"""Orders as they are submitted, and the columns that a page of them is stored as."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain as flatten
from typing import TYPE_CHECKING, Any, Final, cast, overload

from msgspec import Struct

from chain_kernel.errors import OrderError
from chain_kernel.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator


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


class Acks(Sequence[Ack]):
    """The places of orders that follow each other in the chain.

    An Ack is made when somebody looks at it: a caller that submits thousands seldom does.
    """

    __slots__ = ("_ids", "_pid")

    def __init__(self, pid: int, ids: Sequence[int]) -> None:
        """`pid` is that of the first order, which is not empty; of the others, the id before."""
        self._pid = pid
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Ack]:
        return map(Ack, self._ids, flatten((self._pid,), self._ids))

    @overload
    def __getitem__(self, at: int) -> Ack: ...

    @overload
    def __getitem__(self, at: slice) -> list[Ack]: ...

    def __getitem__(self, at: int | slice) -> Ack | list[Ack]:
        if isinstance(at, slice):
            return list(self)[at]
        place = range(len(self._ids))[at]
        return Ack(self._ids[place], self._ids[place - 1] if place else self._pid)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Acks | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


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


class OrderColumns(Struct, frozen=True, gc=False):
    """Good orders, in their order; all columns have the same length."""

    keys: list[str]
    payloads: list[bytes]
    times_ns: list[int | None]
    packed_times: array[int] | None
    """`times_ns` as integers of 64 bits; None if an order has no time of its own."""
    total_bytes: int
    """Bytes of all keys, as UTF-8, and payloads."""

    def __len__(self) -> int:
        return len(self.keys)

    def times_at(self, wall_ns: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the times, `wall_ns` for an order without one, and the same to be packed."""
        if self.packed_times is not None:
            return cast("list[int]", self.times_ns), self.packed_times
        times = [wall_ns if time_ns is None else time_ns for time_ns in self.times_ns]
        return times, times


def joined(parts: Sequence[OrderColumns]) -> OrderColumns:
    """Return the orders of all `parts`, one part after the other, without checking any order."""

    def column(name: str) -> list[Any]:
        return list(flatten.from_iterable(getattr(part, name) for part in parts))

    times = column("times_ns")
    packed = None if any(part.packed_times is None for part in parts) else array("q", times)
    size = sum(part.total_bytes for part in parts)
    return OrderColumns(column("keys"), column("payloads"), times, packed, size)


def columns_of(orders: Sequence[Order]) -> OrderColumns:
    """Return the columns of `orders`. Raises OrderError for the first bad one.

    Whole columns are tested: bad orders are rare and per-order checks are expensive.
    """
    try:
        return _checked_columns(orders)
    except (AttributeError, TypeError, ValueError, OverflowError):
        pass  # the loop below finds the order and its field
    size = sum(map(check_order, orders))
    return OrderColumns(*_taken_apart(orders), None, size)


def _taken_apart(
    orders: Sequence[Order],
) -> tuple[list[str], list[bytes], list[int | None]]:
    """Return keys, payloads and times, in one pass: reaching an order costs the most."""
    keys: list[str] = []
    payloads: list[bytes] = []
    times: list[int | None] = []
    for order in orders:
        keys.append(order.key)
        payloads.append(order.payload)
        times.append(order.event_time_ns)
    return keys, payloads, times


def _checked_columns(orders: Sequence[Order]) -> OrderColumns:
    """Return the columns of `orders`, or raise any of four errors if one of them is bad."""
    keys, payloads, times = _taken_apart(orders)
    text = "".join(keys)
    key_sizes = set(map(len, keys if text.isascii() else map(str.encode, keys)))
    payload_sizes = set(map(len, payloads))
    if (
        "\0" in text
        or min(key_sizes) == 0
        or max(key_sizes) > KEY_BYTES_MAX
        or max(payload_sizes) > PAYLOAD_BYTES_MAX
        or set(map(type, payloads)) != {bytes}
    ):
        raise ValueError("a bad key or payload")
    size = len(text.encode()) + _total(payload_sizes, payloads)
    return OrderColumns(keys, payloads, times, _packed(times), size)


def _total(sizes: set[int], payloads: Sequence[bytes]) -> int:
    """Return the bytes of all payloads, which have these sizes."""
    return max(sizes) * len(payloads) if len(sizes) == 1 else sum(map(len, payloads))


def _packed(times: list[int | None]) -> array[int] | None:
    """Return `times` packed, None if one is missing. Raises if one is no integer of 64 bits."""
    kinds = set(map(type, times))
    if kinds == {int}:
        return array("q", cast("list[int]", times))
    if not kinds <= {int, type(None)}:
        raise TypeError("a time that is no integer")
    array("q", [time_ns for time_ns in times if time_ns is not None])  # raises beyond 64 bits
    return None
