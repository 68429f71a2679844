"""Rows of a CSV file (RFC 4180: commas, double quotes), read strictly.

The first row names the columns. Every other row has as many fields; an empty line is no row.
"""

from __future__ import annotations

import csv
import io
import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from chainctl.intake.compressed import ROW_BYTES_MAX
from chainctl.intake.rows import BUFFER_BYTES, Rows, check_columns, shortened, steps
from orderchain.errors import InputError

if TYPE_CHECKING:
    from chainctl.intake.compressed import FileStream

_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class CsvRows:
    """The rows of a CSV file. Raises InputError when it has no header that can be used."""

    def __init__(self, stream: FileStream) -> None:
        self._stream = stream
        # Bytes that are no UTF-8 become surrogates, so that the rows before them can be used; the
        # encoder meets them later. Only the parser may judge line ends: a quoted field holds any.
        text = io.TextIOWrapper(
            io.BufferedReader(stream, BUFFER_BYTES),
            encoding="utf-8-sig",
            errors="surrogateescape",
            newline="",
        )
        csv.field_size_limit(ROW_BYTES_MAX)
        self._reader = csv.reader(text, strict=True)
        self.columns = check_columns(self._header(), line=1)

    def read(self, limit: int) -> Rows:
        """Return the next rows, at most `limit`; none at the end of the file."""
        while True:
            first_line = self._reader.line_num + 1
            rows, failure = self._take(limit, first_line)
            found = self._checked(rows, first_line, failure)
            if found.rows or found.failure or not rows:
                return found

    def _take(self, limit: int, first_line: int) -> tuple[list[list[str]], InputError | None]:
        """Return the next rows as the parser gives them, and why it gives no more."""
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
        """Return the rows without the empty lines, up to one that has not a field a column."""
        width = len(self.columns)
        if set(map(len, rows)) <= {width}:
            return Rows(
                rows=rows, line_of=lambda index: _line_of(rows, index, first_line), failure=failure
            )
        places: list[int] = []
        for place, row in enumerate(rows):
            if len(row) not in (0, width):
                line = _line_of(rows, place, first_line)
                failure = InputError("number of fields", len(row), f"{width}, as in line 1", line)
                break
            if row:
                places.append(place)
        return Rows(
            rows=[rows[place] for place in places],
            line_of=lambda index: _line_of(rows, places[index], first_line),
            failure=failure,
        )

    def _header(self) -> list[str]:
        try:
            header = next(self._reader, [])
        except csv.Error as error:
            raise InputError("header", shortened(str(error)), "well-formed CSV", 1) from None
        if not header:
            raise InputError("header", "", "the names of the columns", 1)
        return header


def _line_of(rows: list[list[str]], index: int, first_line: int) -> int:
    """Return the line in which a row begins: quoted fields may hold line ends."""
    inside = sum(len(_LINE_END.findall(field)) for row in rows[:index] for field in row)
    return first_line + index + inside
