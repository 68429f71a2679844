"""Rows of one source as plain Python reads them: page by page, never all of them at once.

The simplest source is here: a journal, read line by line. What is sorted or compared is kept in a
table on disk, so that memory stays constant for any amount.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from chain_kernel.errors import SourceBroken
from chain_kernel.files import LINE_BYTES_MAX, found_row, journal_end, no_row, open_regular
from chain_kernel.sql import load_sql
from chain_kernel.text import reason_of
from chain_verifier.verification import OpenTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.config import JournalSource


Row = tuple[Any, ...]
"""The values of `verification.CONTENT`; a plain tuple, since there are millions of them."""

PAGE_ROWS: Final = 10_000
"""Rows held at a time. A page of the largest usual rows (1 kB) is 10 MB."""


class LocalTable(OpenTable, Protocol):
    """One source, opened: its rows, read again at every use."""

    def pages(
        self, ids: tuple[int, int] | None = None, *, content: bool = True
    ) -> Iterator[Sequence[Row]]:
        """Yield the rows. Raises SourceBroken when the source cannot be read to its end.

        With `ids` (the first, and the first after the range), rows outside may be left out. Without
        `content`, the last three values show only whether they are NULL.
        """
        ...

    def notes(self) -> tuple[str, ...]:
        """Return what is no fault, but should be known; complete once the rows were read."""
        ...


class LocalJournalTable:
    """The rows of one journal, as it was when it was opened: what is appended later is left out."""

    has_positions: Final = True

    def __init__(self, source: JournalSource) -> None:
        self.name = source.name
        self._path = Path(source.path)
        self._is_torn = False
        self._bytes, _, self.span = journal_end(self._path)

    def pages(
        self, ids: tuple[int, int] | None = None, *, content: bool = True
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
            with open_regular(self._path) as file:
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


SQL: Final = load_sql("chain_verifier.local", "scratch.sql")


@contextmanager
def open_scratch(table: str, reading: str) -> Iterator[sqlite3.Connection]:
    """Open a table of `scratch.sql` in a temporary folder, which is removed at the end.

    `reading` names the source in the SourceBroken that a full disk raises.
    """
    with tempfile.TemporaryDirectory(prefix="chain-verifier-") as folder:
        try:
            with closing(
                sqlite3.connect(Path(folder) / "scratch", isolation_level=None)
            ) as scratch:
                for statement in ("without_journal", "without_sync", table, "one_transaction"):
                    scratch.execute(SQL[statement])
                yield scratch
        except (sqlite3.Error, OSError) as error:
            raise SourceBroken(
                reading, f"rows could not be kept in {folder}: {reason_of(error)}"
            ) from error
