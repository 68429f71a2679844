"""The orders of a file in order, with the position reached and a digest of all before.

A file that was partly taken before is read again from its start. Its first rows must be unchanged,
which the digest shows; the rows after them are new. The folder, stored after the digest, shows
that a file is another one of the same name, and no longer one.

A row becomes an order: key, payload, time. The payload is a MessagePack map of all values in the
order of the columns, all of them text.
"""

from __future__ import annotations

import os
import re
from copy import copy
from datetime import UTC, datetime
from hashlib import sha256
from itertools import chain as flatten
from operator import itemgetter
from pathlib import Path
from struct import Struct as Layout
from typing import TYPE_CHECKING, Final, Literal, Self

import msgspec
from msgspec import Struct

from chain_kernel.errors import InputError
from chain_kernel.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from chain_kernel.model import IntakeMark
from chain_kernel.text import counted
from sequencer.intake.compressed import FileStream, content_name
from sequencer.intake.rows import TEXT, CsvRows, JsonRows, is_text, shortened
from sequencer.order import Order

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sequencer.intake.rows import RowSource


TimeUnit = Literal["s", "ms", "us", "ns"]

UNITS_NS: Final[Mapping[TimeUnit, int]] = {
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
"""Nanoseconds per unit of a time column."""

_SPELLINGS: Final[Mapping[TimeUnit, str]] = {
    "s": "s sec second",
    "ms": "ms msec milli millisec millisecond",
    "us": "us \N{MICRO SIGN}s \N{GREEK SMALL LETTER MU}s usec micro microsec microsecond",
    "ns": "ns nsec nano nanosec nanosecond",
}
_UNIT_OF_WORD: Final = {
    word + plural: unit
    for unit, words in _SPELLINGS.items()
    for word in words.split()
    for plural in ("", "s")
}
_LAST_WORD: Final = re.compile(r"(?:[A-Z]?[^\W\d_A-Z]+|[A-Z]+)(?=[\W\d_]*$)")
"""The last word of a name, in which a capital after a small letter begins a word."""

_FIRST_TIME_MIN: Final = 365 * 86_400 * UNITS_NS["s"]
_FIRST_TIME_MAX: Final = int(datetime(2101, 1, 1, tzinfo=UTC).timestamp()) * UNITS_NS["s"] - 1
"""1971 to 2100. A time of these years in one unit is outside of them in every other one: what was
read in the wrong unit is refused, since it would be sealed so."""

TIME_MIN: Final = -(2**63)
TIME_MAX: Final = 2**63 - 1

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_LENGTH: Final = Layout(">I")


class Columns(Struct, frozen=True, kw_only=True):
    """The columns of a file, by what they mean."""

    names: tuple[str, ...]
    key: str | None = None
    """The column that holds the client's key; without one the key is `NAME#ROW`."""
    time: str | None = None
    """The column that holds the time of the event."""


class OrderEncoder:
    """Encodes the rows of one file. Raises InputError for a column that does not exist."""

    def __init__(self, name: str, columns: Columns, unit: TimeUnit) -> None:
        self._prefix = f"{name}#"
        self._names = columns.names
        self._key = _index_of(columns.names, columns.key, "key column")
        self._time = _index_of(columns.names, columns.time, "time column")
        self._unit = unit
        self._unit_ns = UNITS_NS[unit]
        self._payload_of = _payload_encoder(columns.names)

    def encode(self, rows: Sequence[list[str]], first_row: int) -> list[Order]:
        """Return the orders of `rows`, the first of which is the data row `first_row`, from 1.

        Raises ValueError when a row is bad; `first_bad` returns which one.
        """
        payloads = list(map(self._payload_of, rows))
        if max(map(len, payloads), default=0) > PAYLOAD_BYTES_MAX:
            raise ValueError("a payload is too long")
        keys = self._keys(rows, first_row)
        return list(map(Order, keys, payloads, self._times(rows, first_row)))

    def first_bad(self, rows: Sequence[list[str]], first_row: int) -> tuple[int, InputError]:
        """Return index and fault of the first bad row; there is one when `encode` raised."""
        for index, row in enumerate(rows):
            try:
                self._check(row, is_first=first_row + index == 1)
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

    def _times(self, rows: Sequence[list[str]], first_row: int) -> Sequence[int | None]:
        if self._time is None:
            return [None] * len(rows)
        texts = list(map(itemgetter(self._time), rows))
        if not all(map(_INTEGER.fullmatch, texts)):
            raise ValueError("a time is no integer")
        unit_ns = self._unit_ns
        times = [int(text) * unit_ns for text in texts]
        if times and not TIME_MIN <= min(times) <= max(times) <= TIME_MAX:
            raise ValueError("a time is out of range")
        if first_row == 1 and times and not _FIRST_TIME_MIN <= times[0] <= _FIRST_TIME_MAX:
            raise ValueError("the first time is out of range")
        return times

    def _check(self, row: list[str], *, is_first: bool) -> None:
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
        if self._time is not None:
            self._check_time(self._names[self._time], row[self._time], is_first=is_first)

    def _check_time(self, name: str, text: str, *, is_first: bool) -> None:
        read_as = f"it was read in {self._unit}; --time-unit sets another unit"
        is_integer = _INTEGER.fullmatch(text) is not None
        if not is_integer or not TIME_MIN <= int(text) * self._unit_ns <= TIME_MAX:
            raise _bad(name, text, f"an integer that fits 64 bits as nanoseconds ({read_as})")
        if is_first and not _FIRST_TIME_MIN <= int(text) * self._unit_ns <= _FIRST_TIME_MAX:
            raise _bad(name, text, f"a first time from 1971 to 2100 ({read_as})")


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


def unit_of(column: str) -> TimeUnit:
    """Return the unit that the last word of `column` names, in any case; without one, ns."""
    word = _LAST_WORD.search(column)
    return "ns" if word is None else _UNIT_OF_WORD.get(word[0].lower(), "ns")


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


FileFormat = Literal["csv", "jsonl"]
HeaderAgain = Literal["refuse", "skip"]

_SUFFIXES: Final[dict[str, FileFormat]] = {
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_PASSED_ROWS: Final = 5_000
"""Rows between two signs of progress while known rows are passed over."""

_DOMAIN: Final = b"orderchain file intake 1\0"
_DIGEST_BYTES: Final = 32


class FileOptions(Struct, frozen=True, kw_only=True):
    """Options of reading a file."""

    key_column: str | None = None
    time_column: str | None = None
    time_unit: TimeUnit | None = None
    """None: as the last word of the time column's name says (`ts_ms`, `eventMillis`), else ns."""
    format: FileFormat | None = None
    """None: by the file's name (.csv; .jsonl, .ndjson, .json)."""
    columns: tuple[str, ...] | None = None
    """Names of the columns of a CSV file without a header."""
    header_again: HeaderAgain = "refuse"
    """The answer to a line of a CSV file that is its header again."""
    delimiter: str | None = None
    """The character between fields of a CSV file, or `\\t`. None: as a first line `sep=;` says,
    else a comma."""
    name: str | None = None
    """The name by which the file is known, wherever it is. None: its own, in its folder."""


class Portion:
    """Some orders of a file, and the mark after them."""

    __slots__ = ("_before", "line_of", "mark", "orders")

    def __init__(
        self,
        orders: Sequence[Order],
        mark: IntakeMark,
        before: FileProgress,
        line_of: Callable[[int], int],
    ) -> None:
        self.orders = orders
        """One for each data row, in their order; at least one."""
        self.mark = mark
        """Stored with the orders, in one transaction."""
        self._before = before
        self.line_of = line_of
        """Returns the line, from 1, in which the row of the order with this index begins."""

    def within(self, bytes_max: int) -> Iterator[Portion]:
        """Yield it in parts of at most `bytes_max`, or of one order."""
        sizes = [len(order.key.encode()) + len(order.payload) for order in self.orders]
        if sum(sizes) <= bytes_max:
            yield self
            return
        before, start, size_bytes = self._before.copy(), 0, 0
        for at, size in enumerate((*sizes, bytes_max)):  # the last one ends the last part
            size_bytes += size
            if size_bytes > bytes_max and start < at:
                yield self._part_after(before.copy(), start, at)
                before.move(self.orders[start:at])
                start, size_bytes = at, size

    def part(self, start: int, end: int) -> Portion:
        """Return the orders from `start` to before `end`, with the mark after them."""
        before = self._before.copy()
        before.move(self.orders[:start])
        return self._part_after(before, start, end)

    def _part_after(self, before: FileProgress, start: int, end: int) -> Portion:
        after = before.copy()
        after.move(self.orders[start:end])
        return Portion(
            self.orders[start:end],
            after.mark(self.mark.source, before),
            before,
            lambda index: self.line_of(start + index),
        )


class FileProgress:
    """The number of data rows that were read, and the running digest of them."""

    def __init__(self, columns: Columns, folder: bytes) -> None:
        self.position = 0
        self._folder = folder
        self._digest = sha256(_DOMAIN + msgspec.msgpack.encode(columns))

    def copy(self) -> FileProgress:
        """Return a copy that moves independently from here."""
        copied = copy(self)
        copied._digest = self._digest.copy()
        return copied

    def move(self, orders: Sequence[Order]) -> None:
        """Move over `orders`."""
        self.position += len(orders)
        self._digest.update(length_prefixed([order.payload for order in orders]))

    def mark(self, source: str, before: FileProgress) -> IntakeMark:
        """Return the mark of this place in `source`, whose stored mark is at `before`."""
        return IntakeMark(
            source=source,
            position=self.position,
            digest=self.digest() + self._folder,
            previous=before.position or None,
        )

    def digest(self) -> bytes:
        """Return the digest of all rows up to here."""
        return self._digest.digest()


class OrderFile:
    """The orders of one file. A context manager; raises InputError, which names the line.

    With `opened`, which may be a pipe, that is read instead of the file at `path`, and closed. The
    name of `path` says how it is read, and is what the intake is known by unless it has a name.
    """

    def __init__(self, path: Path, options: FileOptions, opened: io.FileIO | None = None) -> None:
        self._path = path
        self._name = options.name
        self.is_stream = opened is not None
        """True if a read may wait for another process."""
        self._stream = FileStream(path, opened)
        try:
            if self._name is not None and (not self._name or Path(self._name).name != self._name):
                raise InputError("--input-name", self._name, "the name of a file, without a folder")
            name = content_name(path if self._name is None else Path(self._name))
            self.source = f"file:{name}"
            self._rows = _rows_of(self._stream, path, options)
            columns = Columns(
                names=self._rows.columns, key=options.key_column, time=options.time_column
            )
            unit = options.time_unit or unit_of(options.time_column or "")
            self._encoder = OrderEncoder(name, columns, unit)
        except BaseException:
            self._stream.close()
            raise
        self._folder = b"" if self.is_stream else os.fsencode(path.parent.resolve())
        self._progress = FileProgress(columns, self._folder)
        self._failure: InputError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    @property
    def position(self) -> int:
        """Data rows read so far."""
        return self._progress.position

    @property
    def file_bytes(self) -> int | None:
        """Size of the file on disk; None where it is a stream."""
        return self._stream.file_bytes

    @property
    def file_position(self) -> int:
        """Bytes of `file_bytes` that were read so far."""
        return self._stream.file_position

    def read(self, limit: int) -> Portion | None:
        """Return the next orders, at most `limit`; None at the end of the file.

        A bad row fails the read after the good rows before it were returned. Raises InputError.
        """
        if self._failure is not None:
            raise self._failure
        found = self._rows.read(limit)
        self._failure = found.failure
        orders = self._encode(found.rows, found.line_of)
        if orders:
            before = self._progress.copy()
            self._progress.move(orders)
            mark = self._progress.mark(self.source, before)
            return Portion(orders, mark, before, found.line_of)
        if self._failure is not None:
            raise self._failure
        if self.position == 0:
            raise InputError("input", str(self._path), "a file with rows (it has none)")
        return None

    def pass_over(self, taken: IntakeMark) -> Iterator[None]:
        """Skip the rows that were taken before; yields at intervals, to show progress.

        Raises InputError when the file is shorter than what was taken, begins differently, or is in
        another folder and not named: many systems write files of one name in a folder for each day.
        """
        digest, folder = taken.digest[:_DIGEST_BYTES], taken.digest[_DIGEST_BYTES:]
        rows = counted(taken.position, "row")
        if self._name is None and folder and self._folder not in (b"", folder):
            shown = folder.decode(errors="backslashreplace")
            expected = f"the file of which {rows} were taken in {shown}; {self._way_on()}"
            raise InputError("input", str(self._path), expected)
        while self.position < taken.position:
            if self.read(min(_PASSED_ROWS, taken.position - self.position)) is None:
                expected = f"at least the {rows} taken from it before; {self._way_on()}"
                found = f"{self._path} ({counted(self.position, 'row')})"
                raise InputError("input", found, expected)
            yield
        if self._progress.digest() != digest:
            expected = (
                f"the {rows} at its beginning taken before, read with the same columns; the "
                f"beginning of the file has changed; {self._way_on()}"
            )
            raise InputError("input", str(self._path), expected)

    def _way_on(self) -> str:
        name = self.source.removeprefix("file:")
        return f"--input-name is {name!r} for the same file elsewhere, any other for another file"

    def _encode(self, rows: list[list[str]], line_of: Callable[[int], int]) -> list[Order]:
        """Return the orders of `rows` up to a bad one, which fails the next read."""
        first_row = self.position + 1
        try:
            return self._encoder.encode(rows, first_row)
        except ValueError:
            index, fault = self._encoder.first_bad(rows, first_row)
        self._failure = InputError(fault.field, fault.value, fault.expected, line_of(index))
        return self._encoder.encode(rows[:index], first_row)


def _rows_of(stream: FileStream, path: Path, options: FileOptions) -> RowSource:
    if (options.format or _format_of(path)) == "csv":
        skips_headers = options.header_again == "skip"
        return CsvRows(
            stream,
            options.columns,
            skips_headers=skips_headers,
            delimiter=options.delimiter,
        )
    if options.columns is not None:
        shown = shortened(",".join(options.columns))
        raise InputError("--columns", shown, "nothing: each row of JSON Lines names its columns")
    if options.delimiter is not None:
        raise InputError("--delimiter", shortened(options.delimiter), "nothing: this is JSON Lines")
    return JsonRows(stream)


def _format_of(path: Path) -> FileFormat:
    suffix = Path(content_name(path)).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise InputError("input", str(path), f"a name ending {known}, or --format")
    return _SUFFIXES[suffix]
