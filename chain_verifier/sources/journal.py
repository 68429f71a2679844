"""The rows of a journal, read line by line, never all of them at once.

A journal is JSON Lines, in the order in which the rows were handed on: each keeps its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import astuple

from chain_kernel.errors import SourceBroken
from chain_kernel.files import LINE_BYTES_MAX, found_row, journal_end, no_row
from chain_verifier.places import is_url, open_to_read, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.config import JournalSource
    from chain_verifier.sources.content import Row

_PAGE_BYTES: Final = 2 * 2**20
"""Bytes of lines that are held at a time, and one line: 10,000 usual rows."""

_RANGE_BYTES: Final = 32 * 2**20
"""Bytes of a range: a second of work."""


class JournalRange(Struct, frozen=True):
    """The lines that begin at one of the bytes from `first` on, below `end`."""

    first: int
    end: int


class JournalRows:
    """The rows of one journal, as it was when it was opened: what is appended later is left out."""

    has_positions: Final = True
    is_sorted = False
    may_lack = ()

    def __init__(self, source: JournalSource) -> None:
        self.name = source.name
        path = source.path
        self._path = path if is_url(path) else str(Path(path).absolute())
        place = place_of("journal", self._path)
        self._bytes, has_rest, self.span = journal_end(place, open_to_read)
        self._is_torn = False
        if has_rest:
            *_, last = self.lines(JournalRange(max(0, self._bytes - LINE_BYTES_MAX), self._bytes))
            self._is_torn = found_row(last[-1]) is None

    def pages(self, after_id: int = 0) -> Iterator[Sequence[Row]]:
        """Yield the rows in the order of the file, those up to `after_id` too.

        Raises InputError for a line that is no row.
        """
        number = 0
        for lines in self.lines(JournalRange(0, self._bytes)):
            page = []
            for line in lines:
                number += 1
                text = line.removesuffix(b"\n")
                row = found_row(text)
                if row is None:
                    raise no_row(self.name, text.decode(errors="replace"), number)
                page.append(astuple(row))
            yield page

    def ranges(self) -> list[JournalRange]:
        """Return all lines, about as many bytes in each range."""
        ends = [*range(_RANGE_BYTES, self._bytes, _RANGE_BYTES), self._bytes]
        return [JournalRange(first, end) for first, end in zip([0, *ends], ends, strict=False)]

    def lines(self, asked: JournalRange) -> Iterator[list[bytes]]:
        """Yield the lines of a range, some at a time, but for an incomplete last one.

        Raises SourceBroken.
        """
        try:
            with open_to_read(place_of("journal", self._path)) as file:
                at = asked.first
                if at:
                    file.seek(at - 1)
                    at += len(file.readline(LINE_BYTES_MAX)) - 1
                page: list[bytes] = []
                held = 0
                while at < asked.end:
                    line = file.readline(min(self._bytes - at, LINE_BYTES_MAX))
                    if not line:
                        raise SourceBroken(self.name, "it became shorter while it was read")
                    at += len(line)
                    if at == self._bytes and self._is_torn:
                        break
                    page.append(line)
                    held += len(line)
                    if held > _PAGE_BYTES:
                        yield page
                        page, held = [], 0
                if page:
                    yield page
        except OSError as error:
            raise SourceBroken(self.name, str(error.strerror or error)) from error

    def notes(self) -> tuple[str, ...]:
        """Report an incomplete last line, which a crash or a running receiver may leave."""
        return ("the last line is incomplete, and was left out",) if self._is_torn else ()
