"""A receiver's journal, read line by line: JSON Lines, in the order of delivery."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chain_verifier.local.table import PAGE_ROWS, Row
from orderchain.errors import InputError, SourceBroken
from orderchain.files import END_BYTES, LINE_BYTES_MAX, found_row, last_id, no_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.config import JournalSource


class LocalJournalTable:
    """The rows of one journal, as it was when it was opened: what is appended later is left out."""

    has_positions: Final = True

    def __init__(self, source: JournalSource) -> None:
        self.name = source.name
        self._path = Path(source.path)
        self._is_torn = False
        try:
            with self._path.open("rb") as file:
                self._bytes = file.seek(0, os.SEEK_END)
                file.seek(max(0, self._bytes - END_BYTES))
                self.span = last_id(file.read().split(b"\n")[:-1])
        except OSError as error:
            expected = f"a readable file ({error.strerror})"
            raise InputError("journal", source.path, expected) from error

    def pages(
        self,
        ids: tuple[int, int] | None = None,
        *,
        content: bool = True,
    ) -> Iterator[Sequence[Row]]:
        """Yield the rows in the order of the file. Raises InputError for a line that is no row."""
        page: list[Row] = []
        for number, line in enumerate(self._lines(), 1):
            row = self._row(line, number)
            if row is not None and (ids is None or row[1] is None or ids[0] <= row[1] < ids[1]):
                page.append(row)
            if len(page) == PAGE_ROWS:
                yield page
                page = []
        yield page

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines up to where the file ended when it was opened."""
        left = self._bytes
        try:
            with self._path.open("rb") as file:
                while left:
                    line = file.readline(min(left, LINE_BYTES_MAX))
                    if not line:
                        raise SourceBroken(self.name, "it became shorter while it was read")
                    left -= len(line)
                    yield line
        except OSError as error:
            raise SourceBroken(self.name, str(error.strerror or error)) from error

    def _row(self, line: bytes, number: int) -> Row | None:
        """Return the row on a line; None for an incomplete last line that a crash left."""
        text = line.removesuffix(b"\n")
        row = found_row(text)
        if row is not None:
            return row.chain_id, row.id, row.pid, row.key, row.event_time_ns, row.payload
        if text is line or text == line:
            self._is_torn = True
            return None
        raise no_row(self.name, text.decode(errors="replace"), number)

    def notes(self) -> tuple[str, ...]:
        """Report an incomplete last line, which a crash or a running receiver may leave."""
        return ("the last line is incomplete, and was left out",) if self._is_torn else ()
