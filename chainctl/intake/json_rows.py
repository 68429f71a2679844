"""Rows of a JSON Lines file: one object a line, read strictly.

The first object names the columns. Every other one has the same keys in the same order; an empty
line is no row. Values become text: strings as they are, null as empty text, all else (numbers,
booleans, arrays, objects) as it is written in the file.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Final

import msgspec

from chainctl.intake.rows import BUFFER_BYTES, TEXT, Rows, check_columns, shortened, steps
from orderchain.errors import InputError
from orderchain.reasons import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chainctl.intake.compressed import FileStream

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_QUOTE: Final = ord('"')

_NEGATIVE_ZERO: Final = re.compile(rb"-0\s*[,}]")
"""The one integer whose text does not survive its value. (It may as well stand in a string.)"""

# Three times as fast as looking at each value's bytes: floats stay the text that they are, and so
# do integers in effect. Arrays and objects do not, nor does -0.
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
                raise self._other_keys(content)
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

    def _other_keys(self, content: dict[str, str]) -> InputError:
        keys = ", ".join(content)
        expected = f"{shortened(', '.join(self._keys))}, as in the first object"
        return InputError("keys", shortened(keys), expected, self._line_number)


def _texts(line: bytes) -> dict[str, str]:
    """Return the values of a JSON object as text."""
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
    """Return a JSON value as text."""
    if value[0] == _QUOTE:
        return _decode_text(value)
    return "" if value == b"null" else value.decode()
