"""A receiver's journal, read line by line: JSON Lines, in the order of delivery."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from chain_verifier.local.table import PAGE_ROWS, Row
from orderchain.errors import InputError, SourceBroken
from orderchain.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.config import JournalSource

LINE_BYTES_MAX: Final = 2 * (PAYLOAD_BYTES_MAX + 6 * KEY_BYTES_MAX)
"""More than the longest line of a receiver: base64 takes 4/3 of a payload, an escaped character
six bytes of a key."""

_SHOWN_CHARACTERS_MAX: Final = 120
"""Enough of a line to recognise it."""

_Int = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _Line(Struct, gc=False):
    chain_id: _Int | None = None
    id: _Long | None = None
    pid: _Long | None = None
    key: str | None = None
    event_time_ns: _Long | None = None
    payload: bytes | None = None


_DECODER: Final = msgspec.json.Decoder(_Line)


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
                file.seek(max(0, self._bytes - 2 * LINE_BYTES_MAX))
                self.span = _last_id(file.read().split(b"\n")[:-1])
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
        try:
            if text.endswith(b"}"):  # no blanks, no carriage return: what a receiver writes
                return _values(_DECODER.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        if text is line or text == line:
            self._is_torn = True
            return None
        raise InputError(
            self.name,
            text.decode(errors="replace")[:_SHOWN_CHARACTERS_MAX],
            "a JSON object with chain_id, id, pid, key, event_time_ns and payload in base64",
            number,
        )

    def notes(self) -> tuple[str, ...]:
        """Report an incomplete last line, which a crash or a running receiver may leave."""
        return ("the last line is incomplete, and was left out",) if self._is_torn else ()


def _values(line: _Line) -> Row:
    return line.chain_id, line.id, line.pid, line.key, line.event_time_ns, line.payload


def _last_id(lines: list[bytes]) -> int | None:
    """Return the id on the last whole line, as an estimate of how far the ids go."""
    if not lines:
        return 0
    try:
        found: Any = _DECODER.decode(lines[-1]).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return max(0, found or 0)
