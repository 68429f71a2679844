"""Files that others may have made are read with a bound; those with orders are their user's alone.

The format of a receiver's journal.

A journal is JSON Lines, one row of the chain per line.

    {"chain_id":1,"id":7,"pid":6,"key":"a","event_time_ns":1689038101570000000,"payload":"gaE="}

`payload` is base64, or the object itself where it was decoded. The command that receives writes
journals; both modes of the verifier read those in base64.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from chain_kernel.errors import InputError
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX, PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from io import BufferedReader

    from chain_kernel.model import Event


def home_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the user's folder; None for an account that has none, such as a number alone."""
    try:
        return Path(environ.get("HOME") or Path.home())
    except (RuntimeError, KeyError):
        return None


LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The longest line: a payload of 256 KiB decoded into escaped JSON stays below it, and so does one
in base64 with the longest key."""

END_BYTES: Final = 2 * LINE_BYTES_MAX
"""Bytes at the end of a file that hold the last whole line, and a torn one after it."""


_SHOWN_CHARACTERS_MAX: Final = 120
"""Enough of a line to recognise it."""


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file to read. Raises OSError, also for a pipe or a device: it may have no end."""
    try:
        # A pipe that has no writer is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError:
        raise OSError(errno.EINVAL, "no such name", str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise OSError(errno.EINVAL, f"it is {kind}", str(path))
    return os.fdopen(descriptor, "rb")


def read_bounded(
    path: object, bytes_max: int, open_file: Callable[[Any], BufferedReader] = open_regular
) -> bytes:
    """Return what a regular file holds. Raises OSError, also for more than `bytes_max` bytes."""
    with open_file(path) as file:
        # Its size is looked at first: a file of 2 GB without content takes no place on a disk.
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size <= bytes_max:
            content = file.read(bytes_max + 1)
            if len(content) <= bytes_max:
                return content
    raise OSError(errno.EFBIG, f"it has more than {bytes_max} bytes", str(path))


class JournalRow(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One line, as a receiver writes it."""

    chain_id: Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]
    id: Annotated[int, Meta(ge=1, le=ID_MAX)]
    pid: Annotated[int, Meta(ge=0, le=ID_MAX)]
    key: str
    event_time_ns: int
    payload: Any


_Int = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class FoundRow(Struct, gc=False):
    """One line, as a verifier finds it: a value may be missing or wrong, which is its finding."""

    chain_id: _Int | None = None
    id: _Long | None = None
    pid: _Long | None = None
    key: str | None = None
    event_time_ns: _Long | None = None
    payload: Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)] | None = None


_encoder: Final = msgspec.json.Encoder()
_decode_written: Final = msgspec.json.Decoder(JournalRow).decode
_decode_found: Final = msgspec.json.Decoder(FoundRow).decode


def written_row(line: bytes) -> JournalRow | None:
    """Return the row on a line; None for a line that no receiver writes."""
    try:
        return _decode_written(line)
    except (ValueError, RecursionError):
        return None


def found_row(line: bytes) -> FoundRow | None:
    """Return the content of a line without its end; None unless it is one JSON object to its end,
    without blanks around it, whose values have the types of a row.
    """
    if not line.endswith(b"}"):
        return None
    try:
        return _decode_found(line)
    except (ValueError, RecursionError):
        return None


def no_row(journal: str, line: str, number: int | None) -> InputError:
    """Return the error that names a line of `journal` that is no row."""
    expected = "a JSON object with chain_id, id, pid, key, event_time_ns and payload in base64"
    return InputError(journal, line[:_SHOWN_CHARACTERS_MAX], expected, number)


class JournalEnd(NamedTuple):
    """The end of a journal when it was looked at."""

    size: int
    is_torn: bool
    """True if an incomplete line comes after the last whole one."""
    last_id: int | None
    """The id on the last whole line, at least 0: an estimate of how far the ids go. 0 where there
    is no line; None if it is no row."""


def journal_end(
    path: object, open_file: Callable[[Any], BufferedReader] = open_regular
) -> JournalEnd:
    """Look at the end of a journal. Raises InputError for a file that cannot be one."""
    try:
        with open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - END_BYTES))
            *lines, torn = file.read(END_BYTES).split(b"\n")
    except OSError as error:
        raise InputError("journal", path, f"a readable file ({error.strerror})") from error
    if len(torn) > LINE_BYTES_MAX:
        raise InputError("journal", path, f"lines of at most {LINE_BYTES_MAX} bytes")
    row = found_row(lines[-1]) if lines else FoundRow()
    return JournalEnd(size, bool(torn), None if row is None else max(0, row.id or 0))


def journal_lines(chain_id: int, events: Sequence[Event], payloads: Sequence[object]) -> bytes:
    """Return a line per event, with its payload: bytes, or the object that they decode to.

    Raises TypeError or ValueError for an object that JSON cannot hold.
    """
    return _encoder.encode_lines(
        [
            JournalRow(chain_id, event.id, event.pid, event.key, event.event_time_ns, payload)
            for event, payload in zip(events, payloads, strict=True)
        ]
    )


PRIVATE_MODE: Final = 0o600
"""For journals, reports and snapshots. A file that exists already keeps its mode."""


def private_opener(path: str | Path, flags: int) -> int:
    """Open as `open(..., opener=private_opener)` asks; a file that this creates is its user's."""
    return os.open(path, flags, PRIVATE_MODE)


def write_private(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8. Raises OSError."""
    with open(path, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)
