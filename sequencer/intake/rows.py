"""Rows of text from CSV or JSON Lines files, read strictly.

CSV (RFC 4180: commas or another separator, double quotes; a line ends with LF, CR LF or CR): the
first row names the columns, unless the caller names them. Every other row has as many fields; an
empty line is not a row. The header again, as in files that were joined, is no row either: it is
refused or skipped. A first line `sep=;`, as spreadsheets write it, names the separator.

JSON Lines: one object per line. The first object names the columns. Every other one has the same
keys in the same order; an empty line is not a row. Values become text: strings as they are, null as
empty text, all else (numbers, booleans, arrays, objects) as it is written in the file.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec import Struct

from chain_kernel.errors import InputError
from chain_kernel.text import reason_of
from sequencer.intake.compressed import ROW_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sequencer.intake.compressed import FileStream


READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""A read ends above this much text, however few rows it has: long rows must not fill the memory."""

BUFFER_BYTES: Final = 256 * 1024
"""Bytes read ahead of the parser: enough to make the cost of the calls negligible."""

STEP_ROWS: Final = 16
"""Rows between two checks of the bytes: 16 rows of the longest legal payload are 4 MiB."""

TEXT: Final = "UTF-8 text without NUL"

_VALUE_CHARACTERS_SHOWN: Final = 80


class Rows(Struct, frozen=True, kw_only=True):
    """The result of one read of a file. No rows and no failure: the file has ended."""

    rows: list[list[str]]
    """Values in the order of the columns, as many in each row as there are columns."""
    line_of: Callable[[int], int]
    """Returns the line of the file, from 1, in which the row of this index begins."""
    failure: InputError | None = None
    """The reason why the row after the last one cannot be read; the rows before it are good."""


class RowSource(Protocol):
    """A file of rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: none empty, all different."""
        ...

    def read(self, limit: int) -> Rows:
        """Return the next rows, at most `limit` of them."""
        ...


def check_columns(columns: Sequence[str], line: int | None) -> tuple[str, ...]:
    """Return `columns` if each has a unique name. Raises InputError."""
    seen: set[str] = set()
    for number, name in enumerate(columns, start=1):
        field = f"name of column {number}"
        if not is_text(name):
            raise InputError(field, shortened(name), TEXT, line)
        if not name.strip():
            raise InputError(field, name, "a name", line)
        if name in seen:
            raise InputError(field, shortened(name), "a name that no other column has", line)
        seen.add(name)
    return tuple(columns)


def steps(stream: FileStream, limit: int) -> Iterator[int]:
    """Yield how many rows to read next, until there are `limit` or their text is too long."""
    start = stream.content_bytes
    while limit > 0 and stream.content_bytes - start < READ_BYTES_MAX:
        yield min(limit, STEP_ROWS)
        limit -= STEP_ROWS


def is_text(value: str) -> bool:
    """Return whether `value` came from UTF-8 text: other bytes were read as surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def shortened(value: str) -> str:
    """Return the beginning of `value`, which may be long: enough to find it."""
    if len(value) <= _VALUE_CHARACTERS_SHOWN:
        return value
    return value[:_VALUE_CHARACTERS_SHOWN] + "..."


_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_NUMBER: Final = re.compile(r"\s*[-+]?\.?[0-9][0-9.,:/eETZ+\s-]*")
"""A number, a date or a time: a value, and no name."""

_SEPARATOR_LINE: Final = re.compile(r'("?)sep=([^"\r\n])\1[\r\n]*', re.IGNORECASE)
"""The first line of a file from a spreadsheet."""

_SEPARATORS: Final = ",;\t|"
"""Those that people use; another one can be given."""

_MARK: Final = "\ufeff"
"""The byte order mark, as it is read in the middle of a file."""

_last_of: Final = itemgetter(-1)


class CsvRows:
    """The rows of a CSV file. Raises InputError when it has no header that can be used.

    `columns` are the names where the file has no header; a first line with just these names is one.
    A later line that is the header again is skipped if `skips_headers`, else it is a bad row.
    `delimiter` separates fields; None: what the file's first line says, else a comma, and columns
    that look as if another one did are refused.
    """

    def __init__(
        self,
        stream: FileStream,
        columns: Sequence[str] | None = None,
        *,
        skips_headers: bool = False,
        delimiter: str | None = None,
    ) -> None:
        self._stream = stream
        stream.line_ends = (b"\n", b"\r")
        # Bytes that are not UTF-8 become surrogates, so that the rows before them can be used; the
        # encoder finds them later. Only the parser may judge line ends: a quoted field holds any.
        text = io.TextIOWrapper(
            io.BufferedReader(stream, BUFFER_BYTES),
            encoding="utf-8-sig",
            errors="surrogateescape",
            newline="",
        )
        csv.field_size_limit(ROW_BYTES_MAX)
        first_line = text.readline()
        named = _SEPARATOR_LINE.fullmatch(first_line)
        self._delimiter = _delimiter_of(delimiter, named[2] if named else None)
        lines = chain((first_line,), text)
        self._reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
        self._begin = 1
        if named:
            next(self._reader)
            self._begin = 2
        self._named_in = f"line {self._begin}" if columns is None else "--columns"
        self.columns = tuple(columns or self._header())
        line = self._begin if columns is None else None
        if delimiter is None and not named and (question := self._separator_question(self.columns)):
            field = "header" if columns is None else "--columns"
            found = shortened(",".join(self.columns))
            raise InputError(field, found, f"names with ',' between them{question}", line)
        check_columns(self.columns, line)
        self._skips_headers = skips_headers
        first, *others = self.columns
        # A quote after the mark is text to the parser.
        self._headers = [
            [form, *others] for form in (first, f"{_MARK}{first}", f'{_MARK}"{first}"')
        ]
        if named:  # files that were joined have this line again, too
            self._headers += [["sep=", ""], [f"{_MARK}sep=", ""]]
        self._header_ends = frozenset(map(_last_of, self._headers))

    def read(self, limit: int) -> Rows:
        """Return the next rows, at most `limit`; none at the end of the file."""
        while True:
            first_line = self._reader.line_num + 1
            rows, failure = self._take(limit, first_line)
            found = self._checked(rows, first_line, failure)
            if found.rows or found.failure or not rows:
                return found

    def _take(self, limit: int, first_line: int) -> tuple[list[list[str]], InputError | None]:
        """Return the next rows as the parser returns them, and why it returns no more."""
        rows: list[list[str]] = []
        try:
            for step in steps(self._stream, limit):
                before = len(rows)
                # A list keeps what came before an error: those rows are good.
                rows.extend(islice(self._reader, step))
                if len(rows) - before < step:
                    break
        except csv.Error as error:
            line = _line_of(rows, len(rows), first_line)
            return rows, InputError("row", shortened(str(error)), "well-formed CSV", line)
        except InputError as error:
            return rows, error
        return rows, None

    def _checked(self, rows: list[list[str]], first_line: int, failure: InputError | None) -> Rows:
        """Return the rows without empty lines and skipped headers, up to the first bad one."""
        width = len(self.columns)
        # Most rows have a last value of their own: only the others are compared with the header.
        if set(map(len, rows)) <= {width} and self._header_ends.isdisjoint(map(_last_of, rows)):
            return Rows(
                rows=rows, line_of=lambda index: _line_of(rows, index, first_line), failure=failure
            )
        places: list[int] = []
        for place, row in enumerate(rows):
            if not row:
                continue
            is_header = row in self._headers
            if is_header and (self._skips_headers or first_line + place == self._begin):
                continue
            if is_header or len(row) != width:
                line = _line_of(rows, place, first_line)
                failure = self._bad_row(row, line, is_header=is_header)
                break
            places.append(place)
        return Rows(
            rows=[rows[place] for place in places],
            line_of=lambda index: _line_of(rows, places[index], first_line),
            failure=failure,
        )

    def _bad_row(self, row: list[str], line: int, *, is_header: bool) -> InputError:
        if is_header:
            expected = "an order (the header comes again; --header-again skip leaves it out)"
            return InputError("row", shortened(",".join(row)), expected, line)
        expected = f"{len(self.columns)}, as in {self._named_in}"
        question = self._separator_question(row)
        return InputError("number of fields", len(row), f"{expected}{question}", line)

    def _separator_question(self, fields: Sequence[str]) -> str:
        """Return what to ask where another separator would make more fields of these."""
        counts = {
            other: sum(field.count(other) for field in fields)
            for other in _SEPARATORS.replace(self._delimiter, "")
        }
        other = max(counts, key=lambda each: counts[each])
        if counts[other] < len(fields):
            return ""
        return f" (is the separator another one? --delimiter {other!r})"

    def _header(self) -> list[str]:
        line = self._begin
        try:
            header = next(self._reader, [])
        except csv.Error as error:
            raise InputError("header", shortened(str(error)), "well-formed CSV", line) from None
        if not header:
            raise InputError("header", "", "the names of the columns", line)
        number = next(filter(_NUMBER.fullmatch, header), None)
        if number is not None:
            expected = "names, no numbers (has the file no header? give --columns a,b,c)"
            raise InputError("header", shortened(number), expected, line)
        return header


def _delimiter_of(given: str | None, named: str | None) -> str:
    """Return what separates fields: as `given`, else as `named` in the file. Raises InputError."""
    if given is None:
        return named or ","
    delimiter = "\t" if given == r"\t" else given
    if len(delimiter) != 1 or delimiter in '"\r\n' or not is_text(delimiter):
        raise InputError("--delimiter", shortened(given), r"one character, such as ';' or '\t'")
    if named not in (None, delimiter):
        raise InputError("--delimiter", given, f"{named!r}, as the file's first line says", 1)
    return delimiter


def _line_of(rows: list[list[str]], index: int, first_line: int) -> int:
    """Return the line in which a row begins: quoted fields may hold line ends."""
    inside = sum(len(_LINE_END.findall(field)) for row in rows[:index] for field in row)
    return first_line + index + inside


_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_QUOTE: Final = ord('"')

_NEGATIVE_ZERO: Final = re.compile(rb"-0\s*[,}]")
"""The one integer whose text is lost in its value. (The match may also be in a string.)"""

# Three times as fast as looking at each value's bytes: floats keep their text, and so do integers
# in effect. Arrays, objects and -0 do not.
_decode_values = msgspec.json.Decoder(dict[str, object], float_hook=str).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


class JsonRows:
    """The rows of a JSON Lines file. Raises InputError when its first object cannot be used."""

    def __init__(self, stream: FileStream) -> None:
        self._stream = stream
        self._lines = io.BufferedReader(stream, BUFFER_BYTES)
        self._line_number = 0
        if self._lines.peek(3)[:3] == _BYTE_ORDER_MARK:
            self._lines.read(3)
        self._keys, first = self._first()
        self.columns = check_columns(self._keys, self._line_number)
        self._first_row: list[str] | None = first

    def read(self, limit: int) -> Rows:
        """Return the next rows, at most `limit`; none at the end of the file."""
        rows: list[list[str]] = []
        numbers: list[int] = []
        if self._first_row is not None:
            rows.append(self._first_row)
            numbers.append(self._line_number)
            self._first_row = None
        failure: InputError | None = None
        try:
            for step in steps(self._stream, limit - len(rows)):
                if not self._read_step(rows, numbers, step):
                    break
        except InputError as error:
            failure = error
        return Rows(rows=rows, line_of=numbers.__getitem__, failure=failure)

    def _read_step(self, rows: list[list[str]], numbers: list[int], step: int) -> bool:
        """Append up to `step` rows; False when the file has ended."""
        keys = self._keys
        while step:
            line = self._next_line()
            if not line:
                return False
            content = self._object(line)
            if list(content) != keys:
                expected = f"{shortened(', '.join(keys))}, as in the first object"
                found = shortened(", ".join(content))
                raise InputError("keys", found, expected, self._line_number)
            rows.append(list(content.values()))
            numbers.append(self._line_number)
            step -= 1
        return True

    def _first(self) -> tuple[list[str], list[str]]:
        line = self._next_line()
        if not line:
            raise InputError("input", "empty lines", "a file with rows (it has none)")
        content = self._object(line)
        if not content:
            raise InputError("object", "{}", "keys and values", self._line_number)
        return list(content), list(content.values())

    def _next_line(self) -> bytes:
        """Return the next line that is not empty; nothing at the end of the file."""
        for line in self._lines:
            self._line_number += 1
            if not line.isspace():
                return line
        return b""

    def _object(self, line: bytes) -> dict[str, str]:
        try:
            return _texts(line)
        # Hostile nesting ends in RecursionError, broken text in UnicodeDecodeError, which is a
        # ValueError like every error of msgspec.
        except (ValueError, RecursionError) as error:
            raise self._unreadable(line, error) from None

    def _unreadable(self, line: bytes, error: Exception) -> InputError:
        number = self._line_number
        if isinstance(error, UnicodeDecodeError):
            return InputError("row", "bytes that are none", TEXT, number)
        shown = shortened(line.decode(errors="backslashreplace").strip())
        return InputError("row", shown, f"one JSON object ({reason_of(error)})", number)


def _texts(line: bytes) -> dict[str, str]:
    content = _decode_values(line)
    for key, value in content.items():
        if type(value) is str:
            continue
        text = _SIMPLE.get(type(value))
        if text is None or _NEGATIVE_ZERO.search(line):
            return {name: _text(bytes(raw)) for name, raw in _decode_raw(line).items()}
        content[key] = text(value)
    return content  # type: ignore[return-value] # every value is text by now


_SIMPLE: Final[Mapping[type, Callable[[object], str]]] = {
    int: str,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "",
}


def _text(value: bytes) -> str:
    if value[0] == _QUOTE:
        return _decode_text(value)
    return "" if value == b"null" else value.decode()
