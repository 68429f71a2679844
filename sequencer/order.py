"""Orders as they are submitted, and the columns that a page of them is stored as."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain as flatten
from typing import TYPE_CHECKING, Any, Final, cast, overload

from msgspec import Struct

from chain_kernel import speed
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
    times_ns: array[int] | list[int | None]
    """An array if every order has a time of its own."""
    total_bytes: int
    """Bytes of all keys, as UTF-8, and payloads."""

    def __len__(self) -> int:
        return len(self.keys)

    def times_at(self, wall_ns: int) -> Sequence[int]:
        """Return the times, `wall_ns` for an order without one."""
        if isinstance(self.times_ns, array):
            return self.times_ns
        return [wall_ns if time_ns is None else time_ns for time_ns in self.times_ns]


class OrdersIn(Sequence[Order]):
    """The orders of columns; each is made when somebody looks at it."""

    __slots__ = ("_columns",)

    def __init__(self, columns: OrderColumns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[Order]:
        return map(Order, self._columns.keys, self._columns.payloads, self._columns.times_ns)

    @overload
    def __getitem__(self, at: int) -> Order: ...

    @overload
    def __getitem__(self, at: slice) -> list[Order]: ...

    def __getitem__(self, at: int | slice) -> Order | list[Order]:
        if isinstance(at, slice):
            return list(self)[at]
        columns = self._columns
        return Order(columns.keys[at], columns.payloads[at], columns.times_ns[at])


def joined(parts: Sequence[OrderColumns]) -> OrderColumns:
    """Return the orders of all `parts`, one part after the other, without checking any order."""

    def column(name: str) -> list[Any]:
        return list(flatten.from_iterable(getattr(part, name) for part in parts))

    times = column("times_ns")
    have_all = all(isinstance(part.times_ns, array) for part in parts)
    size = sum(part.total_bytes for part in parts)
    return OrderColumns(
        column("keys"), column("payloads"), array("q", times) if have_all else times, size
    )


def columns_of(orders: Sequence[Order]) -> OrderColumns:
    """Return the columns of `orders`. Raises OrderError for the first bad one.

    Whole columns are tested: bad orders are rare and per-order checks are expensive.
    """
    try:
        return _checked(*_taken_apart(orders))
    except (AttributeError, TypeError, ValueError, OverflowError):
        pass  # the loop below finds the order and its field
    size = sum(map(check_order, orders))
    return OrderColumns(*_taken_apart(orders), size)


def columns_from(
    keys: Sequence[str], payloads: Sequence[bytes], times_ns: Sequence[int | None] | None
) -> OrderColumns:
    """Return the columns of orders that are given as columns: sequences, or Arrow arrays.

    Raises OrderError for columns of unequal length, and for the first bad order.
    """
    times = [None] * len(keys) if times_ns is None else _listed(times_ns, "int64")
    given = _listed(keys), _listed(payloads), times
    for name, column in zip(("payloads", "event_times_ns"), given[1:], strict=True):
        if len(column) != len(given[0]):
            raise OrderError(name, len(column), f"one for each of {len(given[0])} keys")
    try:
        return _checked(*given)
    except (AttributeError, TypeError, ValueError, OverflowError):
        pass  # the next line finds the order and its field
    return OrderColumns(*given, sum(map(check_order, map(Order, *given))))


def _listed(column: Any, kind: str | None = None) -> list[Any]:  # noqa: ANN401 - as it is given
    """Return what `column` holds; an Arrow array of times as integers."""
    if not hasattr(column, "to_pylist"):
        return list(column)
    return list((column if kind is None else column.cast(kind)).to_pylist())


def _taken_apart(
    orders: Sequence[Order],
) -> tuple[list[str], list[bytes], list[int | None]]:
    """Return keys, payloads and times, in one pass: reaching an order costs the most."""
    if speed.native is not None:
        return cast(
            "tuple[list[str], list[bytes], list[int | None]]", speed.native.taken_apart(orders)
        )
    keys: list[str] = []
    payloads: list[bytes] = []
    times: list[int | None] = []
    for order in orders:
        keys.append(order.key)
        payloads.append(order.payload)
        times.append(order.event_time_ns)
    return keys, payloads, times


def _checked(keys: list[str], payloads: list[bytes], times: list[int | None]) -> OrderColumns:
    """Return the columns, or raise any of four errors if an order is bad."""
    if speed.native is not None:
        found = speed.native.checked(keys, payloads, times, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX)
        if found is not None:
            packed, size = found
            return OrderColumns(
                keys, payloads, times if packed is None else array("q", packed), size
            )
    text = "".join(keys)
    key_sizes = set(map(len, keys if text.isascii() else map(str.encode, keys)))
    payload_sizes = set(map(len, payloads))
    if (
        "\0" in text
        or min(key_sizes) == 0
        or max(key_sizes) > KEY_BYTES_MAX
        or max(payload_sizes) > PAYLOAD_BYTES_MAX
        or set(map(type, keys)) != {str}
        or set(map(type, payloads)) != {bytes}
    ):
        raise ValueError("a bad key or payload")
    size = len(text.encode()) + (
        max(payload_sizes) * len(payloads) if len(payload_sizes) == 1 else sum(map(len, payloads))
    )
    return OrderColumns(keys, payloads, _packed(times), size)


def _packed(times: list[int | None]) -> array[int] | list[int | None]:
    """Return `times`, packed if none is missing. Raises if one is no integer of 64 bits."""
    kinds = set(map(type, times))
    if kinds == {int}:
        return array("q", cast("list[int]", times))
    if not kinds <= {int, type(None)}:
        raise TypeError("a time that is no integer")
    array("q", [time_ns for time_ns in times if time_ns is not None])  # raises beyond 64 bits
    return times
