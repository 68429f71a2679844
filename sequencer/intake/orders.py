"""Turns rows of text into orders: key, payload, time.

The payload is a MessagePack map of all values in the order of the columns, all of them text.
"""

from __future__ import annotations

import re
from itertools import chain as flatten
from operator import itemgetter
from struct import Struct as Layout
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from orderchain.errors import InputError
from orderchain.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from sequencer.intake.rows import TEXT, is_text, shortened
from sequencer.order import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


UNITS_NS: Final = {"_ns": 1, "_us": 1_000, "_ms": 1_000_000, "_s": 1_000_000_000}
"""Nanoseconds per unit of a time column, by the ending of its name; without an ending, 1."""

TIME_MIN: Final = -(2**63)
TIME_MAX: Final = 2**63 - 1

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_LENGTH: Final = Layout(">I")


class Columns(Struct, frozen=True, kw_only=True):
    """What the columns of a file mean."""

    names: tuple[str, ...]
    key: str | None = None
    """The column that holds the client's key; without one the key is `NAME#ROW`."""
    time: str | None = None
    """The column that holds the time of the event."""


class OrderEncoder:
    """Encodes the rows of one file. Raises InputError for a column that does not exist."""

    def __init__(self, name: str, columns: Columns) -> None:
        self._prefix = f"{name}#"
        self._names = columns.names
        self._key = _index_of(columns.names, columns.key, "key column")
        self._time = _index_of(columns.names, columns.time, "time column")
        self._unit_ns = unit_of(columns.time or "")
        self._payload_of = _payload_encoder(columns.names)

    def encode(self, rows: Sequence[list[str]], first_row: int) -> list[Order]:
        """Return the orders of `rows`, the first of which is the data row `first_row`, from 1.

        Raises ValueError when a row is bad; `first_bad` returns which one.
        """
        payloads = list(map(self._payload_of, rows))
        if max(map(len, payloads), default=0) > PAYLOAD_BYTES_MAX:
            raise ValueError("a payload is too long")
        keys = self._keys(rows, first_row)
        return list(map(Order, keys, payloads, self._times(rows)))

    def first_bad(self, rows: Sequence[list[str]]) -> tuple[int, InputError]:
        """Return index and fault of the first bad row; there is one when `encode` raised."""
        for index, row in enumerate(rows):
            try:
                self._check(row)
            except InputError as error:
                return index, error
        raise ValueError("no row is bad")

    def _keys(self, rows: Sequence[list[str]], first_row: int) -> Sequence[str]:
        if self._key is None:
            prefix = self._prefix
            return [f"{prefix}{number}" for number in range(first_row, first_row + len(rows))]
        keys = list(map(itemgetter(self._key), rows))
        if not all(map(_is_key, keys)):
            raise ValueError("a key cannot be used")
        return keys

    def _times(self, rows: Sequence[list[str]]) -> Sequence[int | None]:
        if self._time is None:
            return [None] * len(rows)
        texts = list(map(itemgetter(self._time), rows))
        if not all(map(_INTEGER.fullmatch, texts)):
            raise ValueError("a time is no integer")
        unit_ns = self._unit_ns
        times = [int(text) * unit_ns for text in texts]
        if times and not TIME_MIN <= min(times) <= max(times) <= TIME_MAX:
            raise ValueError("a time is out of range")
        return times

    def _check(self, row: list[str]) -> None:
        for name, value in zip(self._names, row, strict=True):
            # A JSON text may hold an escaped NUL: harmless in a payload, which is bytes.
            if not is_text(value.replace("\0", "")):
                raise _bad(name, value, TEXT)
        size = len(self._payload_of(row))
        if size > PAYLOAD_BYTES_MAX:
            raise InputError("payload", f"{size} bytes", f"at most {PAYLOAD_BYTES_MAX}")
        if self._key is not None and not _is_key(row[self._key]):
            expected = f"a key: 1 to {KEY_BYTES_MAX} bytes of {TEXT}"
            raise _bad(self._names[self._key], row[self._key], expected)
        if self._time is not None and not self._is_time(row[self._time]):
            expected = "an integer that fits 64 bits as nanoseconds"
            raise _bad(self._names[self._time], row[self._time], expected)

    def _is_time(self, text: str) -> bool:
        return (
            _INTEGER.fullmatch(text) is not None
            and TIME_MIN <= int(text) * self._unit_ns <= TIME_MAX
        )


def _payload_encoder(names: Sequence[str]) -> Callable[[list[str]], bytes]:
    """Return what encodes the values of a row as a MessagePack map from `names`."""
    encode = msgspec.msgpack.Encoder().encode
    fields = {f"field_{index}": name for index, name in enumerate(names)}
    try:
        # It takes a third of the time of a dict.
        row_type = msgspec.defstruct(
            "Row", [(field, str) for field in fields], rename=fields, gc=False
        )
    except ValueError:  # a name with a quote, a backslash or a control character
        return lambda row: encode(dict(zip(names, row, strict=True)))
    return lambda row: encode(row_type(*row))


def unit_of(column: str) -> int:
    """Return the nanoseconds per unit of `column`."""
    return next((unit for ending, unit in UNITS_NS.items() if column.endswith(ending)), 1)


def length_prefixed(payloads: Sequence[bytes]) -> bytes:
    """Return the payloads in one piece, each after its length: no two lists look the same."""
    return b"".join(
        flatten.from_iterable(zip(map(_LENGTH.pack, map(len, payloads)), payloads, strict=True))
    )


def _index_of(names: Sequence[str], column: str | None, field: str) -> int | None:
    if column is None:
        return None
    if column not in names:
        known = shortened(", ".join(names))
        raise InputError(field, column, f"one of the file's columns ({known})")
    return names.index(column)


def _is_key(key: str) -> bool:
    return 0 < len(key.encode(errors="surrogateescape")) <= KEY_BYTES_MAX and "\0" not in key


def _bad(name: str, value: str, expected: str) -> InputError:
    return InputError(f"column {name!r}", shortened(value), expected)
