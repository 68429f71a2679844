"""The rows of a journal, read line by line, never all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chain_kernel.errors import SourceBroken
from chain_kernel.files import LINE_BYTES_MAX, found_row, journal_end, no_row
from chain_verifier.places import open_to_read, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.config import JournalSource

Row = tuple[Any, ...]
"""The values of `verification.CONTENT`; a plain tuple, since there are millions of them."""

PAGE_ROWS: Final = 10_000
"""Rows held at a time. A page of the largest usual rows (1 kB) is 10 MB."""


class JournalRows:
    """The rows of one journal, as it was when it was opened: what is appended later is left out."""

    has_positions: Final = True
    is_sorted = False
    may_lack = ()

    def __init__(self, source: JournalSource) -> None:
        self.name = source.name
        self._place = place_of("journal", source.path)
        self._is_torn = False
        self._bytes, _, self.span = journal_end(self._place, open_to_read)

    def pages(self, after_id: int = 0) -> Iterator[Sequence[Row]]:
        """Yield the rows in the order of the file, those up to `after_id` too.

        Raises InputError for a line that is no row.
        """
        page: list[Row] = []
        for number, line in enumerate(self._lines(), 1):
            row = self._row(line, number)
            if row is not None:
                page.append(row)
            if len(page) == PAGE_ROWS:
                yield page
                page = []
        yield page

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines up to where the file ended when it was opened."""
        left = self._bytes
        try:
            with open_to_read(self._place) as file:
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
