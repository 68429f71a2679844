"""Rows of text, whatever the format of the file they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from orderchain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chainctl.intake.compressed import FileStream

READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""A read ends above this much text however few rows it has: long rows must not fill the memory."""

BUFFER_BYTES: Final = 256 * 1024
"""What is read ahead of the parser: large enough that the calls do not count."""

STEP_ROWS: Final = 16
"""Rows between two looks at the bytes: 16 rows of the longest legal payload are 4 MiB."""

TEXT: Final = "UTF-8 text without NUL"

_VALUE_CHARACTERS_SHOWN: Final = 80


class Rows(Struct, frozen=True, kw_only=True):
    """What one read of a file brought. No rows and no failure: the file has ended."""

    rows: list[list[str]]
    """Values in the order of the columns, as many in each row as there are columns."""
    line_of: Callable[[int], int]
    """Returns the line of the file, from 1, in which the row of this index begins."""
    failure: InputError | None = None
    """Why the row behind the last one cannot be read; the rows before it are good."""


class RowSource(Protocol):
    """A file of rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: not empty, no two alike."""
        ...

    def read(self, limit: int) -> Rows:
        """Return the next rows, at most `limit` of them."""
        ...


def check_columns(columns: Sequence[str], line: int) -> tuple[str, ...]:
    """Return `columns` when each has a name of its own. Raises InputError."""
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
    """Yield how many rows to read next, until they are `limit` or their text is too long."""
    start = stream.content_bytes
    while limit > 0 and stream.content_bytes - start < READ_BYTES_MAX:
        yield min(limit, STEP_ROWS)
        limit -= STEP_ROWS


def is_text(value: str) -> bool:
    """Say whether `value` came from UTF-8 text: bytes that are none were read as surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def shortened(value: str) -> str:
    """Return the beginning of `value`, which may be long: enough to find it by."""
    if len(value) <= _VALUE_CHARACTERS_SHOWN:
        return value
    return value[:_VALUE_CHARACTERS_SHOWN] + "..."
