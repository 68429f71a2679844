"""A receiver's journal, which is its own checkpoint; `chain_kernel.files` has its format.

Lines are only ever appended, in the order of the chain. Each run of rows is handed to the system at
once, and forced to the disk at the latest when the next run comes a second later, and at the end.
What a crash tears off is read from the database again: a torn last line is cut off, and the journal
goes on after the last whole one.

No other process may cut the file: a journal without its rows is no checkpoint. A file that another
process made shorter (logrotate with copytruncate) ends the receiver before it writes another row.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, Self

import msgspec

from chain_kernel.errors import InputError, SettingError
from chain_kernel.files import (
    END_BYTES,
    LINE_BYTES_MAX,
    PRIVATE_MODE,
    JournalRow,
    journal_lines,
    written_row,
)
from chain_kernel.text import reason_of
from chainctl.exits import BrokeOff

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from chain_kernel.model import Event

PayloadForm = Literal["base64", "msgpack"]

SYNC_SECONDS: Final = 1.0
"""So many seconds of rows a power cut may take from the end of a journal. They are read again; a
shorter time would make a receiver on a slow disk wait for it at every run."""

_encode = msgspec.json.Encoder().encode
_decode_payload = msgspec.msgpack.Decoder().decode


class Journal:
    """The journal of one chain in one file. A context manager.

    Opening looks at the file and changes nothing; the first `append` makes it, or cuts off what is
    torn. Raises InputError for a file that is no journal of this chain, SettingError for one that
    cannot be written or that another process writes.
    """

    def __init__(self, path: Path, chain_id: int, form: PayloadForm = "base64") -> None:
        self._path = path
        self._chain_id = chain_id
        self._form = form
        self._descriptor = -1
        self._unsynced_since: float | None = None
        self.last_row: JournalRow | None = None
        """The last whole line that was found at the opening; None in a new journal."""
        self._last_line = b""
        self._end = 0
        """The place after the last whole line."""
        _check_path(path)
        if path.exists():
            self._open(os.O_RDWR)
            try:
                self._read_ends()
            except BaseException:
                os.close(self._descriptor)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor < 0:
            return
        try:
            self._sync()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def start(self) -> None:
        """Make the file ready for appending: create it where it is missing, cut off a torn line."""
        if self._descriptor < 0:
            # What was made since the opening holds rows that were not looked at.
            self._open(os.O_RDWR | os.O_CREAT | os.O_EXCL)
            _sync_folder(self._path)
        with self._naming_file():
            os.ftruncate(self._descriptor, self._end)

    def append(self, events: Sequence[Event]) -> None:
        """Append rows, each linked to the one before. Raises OSError when the disk takes no more.

        Raises InputError when a payload is to be decoded and is no MessagePack, and BrokeOff when
        another process has changed the file.
        """
        lines = memoryview(encode_rows(self._chain_id, events, self._form))
        size = os.fstat(self._descriptor).st_size
        if size != self._end:
            raise BrokeOff(
                f"journal {self._path}: another process has changed it: it has {size} bytes and "
                f"had {self._end} (logrotate with copytruncate? a journal must not be rotated)"
            )
        with self._naming_file():
            while lines:
                written = os.write(self._descriptor, lines)
                self._end += written
                lines = lines[written:]
        now = time.monotonic()
        if self._unsynced_since is None:
            self._unsynced_since = now
        elif now - self._unsynced_since >= SYNC_SECONDS:
            self._sync()

    def check_last(self, events: Sequence[Event]) -> None:
        """Raise InputError unless `events` are the row of the last line, and nothing else."""
        if encode_rows(self._chain_id, events, self._form) != self._last_line:
            raise self.foreign()

    def foreign(self) -> InputError:
        """Return the error for a last line that is not what the database has."""
        last_id = self.last_row.id if self.last_row else 0
        return InputError(
            "journal",
            str(self._path),
            f"one of this database (id {last_id} is another row there, or none; or it was written "
            "with another --decode)",
        )

    def _sync(self) -> None:
        if self._unsynced_since is not None:
            with self._naming_file():
                os.fsync(self._descriptor)
            self._unsynced_since = None

    def _open(self, flags: int) -> None:
        try:
            # Appended, so that a file that is cut meanwhile never gets a hole of NULs.
            # A link may lead to a file that is still to be made.
            place = os.path.realpath(self._path)
            descriptor = os.open(place, flags | os.O_APPEND | os.O_CLOEXEC, PRIVATE_MODE)
        except FileExistsError:
            raise _unusable(self._path, "another process has made it meanwhile") from None
        except OSError as error:
            raise _unusable(self._path, error.strerror or "") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise _unusable(self._path, "another process writes it") from None
        self._descriptor = descriptor

    def _read_ends(self) -> None:
        """Look at the first and the last line, and find where the last whole line ends."""
        size = os.fstat(self._descriptor).st_size
        start = max(0, size - END_BYTES)
        tail = os.pread(self._descriptor, size - start, start)
        lines_end = tail.rfind(b"\n") + 1
        if lines_end == 0:
            self._check_torn_beginning(tail, is_whole_file=start == 0)
            return
        head = os.pread(self._descriptor, LINE_BYTES_MAX, 0)
        self._row(head.partition(b"\n")[0], "first")
        line_start = tail.rfind(b"\n", 0, lines_end - 1) + 1
        self._last_line = tail[line_start:lines_end]
        self.last_row = self._row(self._last_line, "last")
        self._end = start + lines_end

    def _check_torn_beginning(self, content: bytes, *, is_whole_file: bool) -> None:
        """Refuse a file without a whole line, unless it is the beginning of a first one."""
        beginning = b'{"chain_id":%d,"id":' % self._chain_id
        compared = min(len(content), len(beginning))
        if not is_whole_file or content[:compared] != beginning[:compared]:
            raise self._no_journal("it holds no row")

    def _row(self, line: bytes, which: str) -> JournalRow:
        row = written_row(line)
        if row is None:
            raise self._no_journal(f"its {which} line is no row")
        if row.chain_id != self._chain_id:
            raise InputError(
                "journal", str(self._path), f"one of chain {self._chain_id}, not of {row.chain_id}"
            )
        return row

    def _no_journal(self, reason: str) -> InputError:
        return InputError(
            "journal", str(self._path), f"a journal of chain {self._chain_id} ({reason})"
        )

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        """Name the file in an error of the disk."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error


def encode_rows(chain_id: int, events: Sequence[Event], form: PayloadForm) -> bytes:
    """Return the lines of `events`. Raises InputError for a payload that is not of the `form`."""
    is_plain = form == "base64"
    payloads = [event.payload for event in events] if is_plain else _decoded(events)
    return journal_lines(chain_id, events, payloads)


def _decoded(events: Sequence[Event]) -> list[object]:
    decoded: list[object] = []
    for event in events:
        try:
            value = _decode_payload(event.payload)
            _encode(value)
        # Hostile nesting ends in RecursionError; what JSON cannot hold in TypeError or ValueError.
        except (ValueError, TypeError, RecursionError):
            raise InputError(
                f"payload of id {event.id}",
                f"{len(event.payload)} bytes",
                "MessagePack that JSON can hold (leave --decode out for base64)",
            ) from None
        decoded.append(value)
    return decoded


def _check_path(path: Path) -> None:
    """Refuse what cannot become a journal, before anything is done."""
    if "\0" in str(path):
        raise _unusable(path, "its name holds a NUL")
    try:
        if path.exists():
            if not stat.S_ISREG(path.stat().st_mode):
                raise _unusable(path, "it is no regular file")
        elif not path.parent.is_dir():
            raise _unusable(path, f"there is no folder {path.parent}")
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            raise _unusable(path, f"the folder {path.parent} cannot be written")
    except OSError as error:
        raise _unusable(path, error.strerror or reason_of(error)) from None


def _unusable(path: Path, reason: str) -> SettingError:
    return SettingError("--output", str(path), f"a file that can be written ({reason})")


def _sync_folder(path: Path) -> None:
    """Make sure that a new file's name survives a power cut too."""
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
