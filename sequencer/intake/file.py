"""A file as an intake: its orders in order, with the position reached and a digest of all before.

A file that was partly taken before is read again from its start. Its first rows must be unchanged,
which the digest shows; the rows after them are new.
"""

from __future__ import annotations

from copy import copy
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

import msgspec
from msgspec import Struct

from orderchain.batch import IntakeMark
from orderchain.errors import InputError
from orderchain.text import counted
from sequencer.intake.compressed import FileStream, content_name
from sequencer.intake.orders import Columns, OrderEncoder, length_prefixed
from sequencer.intake.rows import CsvRows, JsonRows

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from sequencer.intake.rows import RowSource
    from sequencer.order import Order


FileFormat = Literal["csv", "jsonl"]

_SUFFIXES: Final[dict[str, FileFormat]] = {
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_PASSED_ROWS: Final = 5_000
"""Rows between two signs of progress while known rows are passed over."""

_DOMAIN: Final = b"orderchain file intake 1\0"


class FileOptions(Struct, frozen=True, kw_only=True):
    """How a file is to be read."""

    key_column: str | None = None
    time_column: str | None = None
    format: FileFormat | None = None
    """None: by the file's name (.csv; .jsonl, .ndjson, .json)."""


class Portion:
    """Some orders of a file, and the mark after them."""

    __slots__ = ("_before", "_line_of", "mark", "orders")

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
        self._line_of = line_of

    def line_of(self, index: int) -> int:
        """Return the line, from 1, in which the row of the order `index` begins."""
        return self._line_of(index)

    def part(self, start: int, end: int) -> Portion:
        """Return the orders from `start` to before `end`, with the mark after them."""
        before, behind = self._before.copy(), self._before.copy()
        before.move(self.orders[:start])
        behind.move(self.orders[:end])
        return Portion(
            self.orders[start:end],
            behind.mark(self.mark.source, before),
            before,
            lambda index: self._line_of(start + index),
        )


class FileProgress:
    """How many data rows were read, and the running digest of them."""

    def __init__(self, columns: Columns) -> None:
        self.position = 0
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
            digest=self.digest(),
            previous=before.position or None,
        )

    def digest(self) -> bytes:
        """Return the digest of all rows up to here."""
        return self._digest.digest()


class FileIntake:
    """The orders of one file. A context manager; raises InputError, which names the line.

    With `opened`, which may be a pipe, that is read instead of the file at `path`, and closed; the
    name of `path` is what the intake is known by, and says how it is read.
    """

    def __init__(self, path: Path, options: FileOptions, opened: io.FileIO | None = None) -> None:
        self._path = path
        self.source = f"file:{content_name(path)}"
        self.is_stream = opened is not None
        """Whether a read may wait for another process."""
        self._stream = FileStream(path, opened)
        try:
            read = _READERS[options.format or _format_of(path)]
            self._rows: RowSource = read(self._stream)
            columns = Columns(
                names=self._rows.columns, key=options.key_column, time=options.time_column
            )
            self._encoder = OrderEncoder(content_name(path), columns)
        except BaseException:
            self._stream.close()
            raise
        self._progress = FileProgress(columns)
        self._failure: InputError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """How much of `file_bytes` was read so far."""
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

        Raises InputError when the file is shorter than what was taken, or begins differently.
        """
        while self.position < taken.position:
            if self.read(min(_PASSED_ROWS, taken.position - self.position)) is None:
                expected = f"at least the {counted(taken.position, 'row')} taken from it before"
                found = f"{self._path} ({counted(self.position, 'row')})"
                raise InputError("input", found, expected)
            yield
        if self._progress.digest() != taken.digest:
            expected = (
                f"the {counted(taken.position, 'row')} at its beginning taken before, read with "
                "the same columns; the beginning of the file has changed"
            )
            raise InputError("input", str(self._path), expected)

    def _encode(self, rows: list[list[str]], line_of: Callable[[int], int]) -> list[Order]:
        """Return the orders of `rows` up to a bad one, which fails the next read."""
        first_row = self.position + 1
        try:
            return self._encoder.encode(rows, first_row)
        except ValueError:
            index, fault = self._encoder.first_bad(rows)
        self._failure = InputError(fault.field, fault.value, fault.expected, line_of(index))
        return self._encoder.encode(rows[:index], first_row)


_READERS: Final[Mapping[FileFormat, Callable[[FileStream], RowSource]]] = {
    "csv": CsvRows,
    "jsonl": JsonRows,
}


def _format_of(path: Path) -> FileFormat:
    suffix = Path(content_name(path)).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise InputError("input", str(path), f"a name ending {known}, or --format")
    return _SUFFIXES[suffix]
