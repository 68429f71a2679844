"""A file of any size as a stream of its decompressed bytes.

One guard bounds the length of a line, for all forms: a file without a line end would fill the
memory. The libraries' decompressors are used, not their readers: `lzma.open` takes no bound on the
memory that an xz header asks for, and zstandard's reader accepts a cut-off file as a whole one.
"""

from __future__ import annotations

import io
import lzma
import os
import stat
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chain_kernel.errors import InputError
from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from _typeshed import WriteableBuffer


ROW_BYTES_MAX: Final = 2 * 1024 * 1024
"""The longest line. A payload of at most 256 KiB may need six times that as escaped JSON."""

_READ_BYTES: Final = 64 * 1024
"""Compressed bytes per read."""

_PIECE_BYTES: Final = 256 * 1024
"""Decompressed bytes per piece: what a hostile file can make us hold at once."""

_ZSTD_SLICE_BYTES: Final = 1024
"""Zstandard's decompressor returns all that its input holds. A block of 128 KiB may be packed into
four bytes, so a slice of this size grows to 32 MiB at most."""


_XZ_MEMORY_BYTES_MAX: Final = 192 * 1024 * 1024
"""The most memory that an xz file may take: `xz -9` needs 65 MiB, a hostile header asks for 4
GiB."""


class FileStream(io.RawIOBase):
    """The content of a file: decompressed as its name says (.gz, .xz, .zst), else as it is.

    With `opened`, which may be a pipe, that is read instead, and closed; `path` only names it.

    NUL bytes come out as 0xFF, which is not valid text either: so readers of text need to look for
    only one kind of bad byte. Raises InputError when the file cannot be read, is cut off, or holds
    a line longer than `ROW_BYTES_MAX`.
    """

    def __init__(self, path: Path, opened: io.FileIO | None = None) -> None:
        super().__init__()
        self._path = path
        self._file = _open_regular(path) if opened is None else opened
        self.file_bytes = None if opened is not None else os.fstat(self._file.fileno()).st_size
        """Size of the file as it is stored; None where only its end shows it."""
        self.file_position = 0
        """Bytes of the file, as it is stored, that were read so far."""
        self._suffix = path.suffix.lower()
        self._new = DECOMPRESSORS.get(self._suffix)
        self._decompressor = self._new() if self._new else None
        self._piece = memoryview(b"")
        self._line_bytes = 0
        self.line_ends: tuple[bytes, ...] = (b"\n",)
        """The end of a line for the reader: no line may be longer than `ROW_BYTES_MAX`."""
        self.content_bytes = 0
        """Bytes of content that were returned so far."""

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def close(self) -> None:
        """Close the file."""
        # The interpreter also closes a stream whose constructor raised, before it had a file: from
        # Python 3.13 on, an error of that is shown.
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer` with the next bytes of the content; 0 at the end."""
        if not self._piece:
            self._piece = memoryview(self._checked(self._next_piece()))
        target = memoryview(buffer)
        count = min(len(target), len(self._piece))
        target[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        self.content_bytes += count
        return count

    def _next_piece(self) -> bytes:
        """Return the next bytes of the content, nothing at its end."""
        if self._decompressor is None:
            return self._read()
        while True:
            piece = self._feed(self._decompressor)
            if piece is None or piece:
                return piece or b""

    def _feed(self, decompressor: _Decompressor) -> bytes | None:
        """Advance the decompressor by one step; None when the file has ended as it should."""
        data = b""
        if decompressor.eof:
            data = self._rest(decompressor.unused_data)
            if not data:
                return None
            decompressor = self._decompressor = self._new()  # type: ignore[misc] # it was made once
        elif decompressor.needs_input:
            data = self._read()
            if not data:
                raise self._unreadable(f"a whole {self._suffix} file (it is cut off)")
        try:
            return decompressor.decompress(data, _PIECE_BYTES)
        except (zlib.error, lzma.LZMAError, _zstd_error()):
            raise self._unreadable(f"a {self._suffix} file (its content is not)") from None

    def _rest(self, unused: bytes) -> bytes:
        """Return the beginning of the next stream of the file; padding with zeros is skipped."""
        rest = unused.lstrip(b"\0")
        while not rest:
            data = self._read()
            if not data:
                return b""
            rest = data.lstrip(b"\0")
        return rest

    def _read(self) -> bytes:
        try:
            data = self._file.read(_READ_BYTES)
        except OSError as error:
            raise self._unreadable(
                f"a readable file: {error.strerror or reason_of(error)}"
            ) from None
        self.file_position += len(data)
        return data

    def _checked(self, piece: bytes) -> bytes:
        """Return `piece` with NULs replaced; refuse a line that is too long."""
        line_end = max(map(piece.rfind, self.line_ends))
        self._line_bytes = (
            self._line_bytes + len(piece) if line_end < 0 else len(piece) - line_end - 1
        )
        if self._line_bytes > ROW_BYTES_MAX:
            raise self._unreadable(f"lines of at most {ROW_BYTES_MAX} bytes")
        return piece.replace(b"\0", b"\xff") if b"\0" in piece else piece

    def _unreadable(self, expected: str) -> InputError:
        return InputError("input", str(self._path), expected)


class _Wrapped:
    """A decompressor with the names of lzma's own, which is the only one that has what we need."""

    def __init__(self, wrapped: Any) -> None:  # noqa: ANN401 - zlib's and zstandard's, without a type
        self._wrapped = wrapped
        self._waiting = b""

    @property
    def eof(self) -> bool:
        """True if the stream has ended."""
        return bool(self._wrapped.eof)

    @property
    def needs_input(self) -> bool:
        """True if it needs more input before it can return more."""
        return not self._waiting


class _Gzip(_Wrapped):
    """A gzip stream."""

    def __init__(self) -> None:
        super().__init__(zlib.decompressobj(wbits=31))

    @property
    def unused_data(self) -> bytes:
        """Bytes that were given after the end."""
        return bytes(self._wrapped.unused_data)

    def decompress(self, data: bytes, length: int) -> bytes:
        """Return at most `length` bytes; unused input is kept."""
        piece: bytes = self._wrapped.decompress(self._waiting + data, length)
        self._waiting = self._wrapped.unconsumed_tail
        return piece


class _Zstandard(_Wrapped):
    """A Zstandard frame, given in slices so small that each stays small when it is unpacked."""

    def __init__(self) -> None:
        import zstandard

        super().__init__(zstandard.ZstdDecompressor().decompressobj())

    @property
    def unused_data(self) -> bytes:
        """Bytes that were given after the end."""
        return bytes(self._wrapped.unused_data) + self._waiting

    def decompress(self, data: bytes, _: int) -> bytes:
        """Return what the next slice holds."""
        waiting = self._waiting + data
        self._waiting = waiting[_ZSTD_SLICE_BYTES:]
        return bytes(self._wrapped.decompress(waiting[:_ZSTD_SLICE_BYTES]))


_Decompressor: TypeAlias = "lzma.LZMADecompressor | _Gzip | _Zstandard"

DECOMPRESSORS: Final[dict[str, Callable[[], _Decompressor]]] = {
    ".gz": _Gzip,
    ".xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY_BYTES_MAX),
    ".zst": _Zstandard,
}
"""Compressions, by the last suffix of a file's name."""


def content_name(path: Path) -> str:
    """Return the file's name without folder and compression suffix: the same for the same content.

    Raises InputError when the name is not text, since it becomes part of keys.
    """
    name = path.name
    if path.suffix.lower() in DECOMPRESSORS:
        name = path.stem
    if not name or not name.isprintable():
        raise InputError("input", str(path), "a file whose name is printable text")
    return name


def _zstd_error() -> type[Exception]:
    """Return the error of zstandard, without importing it for files that do not need it."""
    import sys

    module = sys.modules.get("zstandard")
    error: type[Exception] = module.ZstdError if module else zlib.error
    return error


def _open_regular(path: Path) -> io.FileIO:
    """Open a file that can be read again from its start, which a pipe or a device cannot."""
    try:
        # Checked before it is opened: opening a pipe would wait for its other end.
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise InputError("input", str(path), f"a file (it is {kind})")
        file = io.FileIO(path, "r")
    except OSError as error:
        raise InputError("input", str(path), f"a readable file: {error.strerror}") from None
    except ValueError:  # a NUL in the name
        raise InputError("input", str(path), "the path of a file") from None
    if os.fstat(file.fileno()).st_size == 0:
        file.close()
        raise InputError("input", str(path), "a file with rows (it is empty)")
    return file
