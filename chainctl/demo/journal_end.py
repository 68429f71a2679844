"""Where a journal ends, when a stored state says where it should."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from orderchain.errors import OrderchainError

if TYPE_CHECKING:
    from pathlib import Path

_READ_BYTES: Final = 1024 * 1024


def synced_length(journal: Path) -> int:
    """Force a journal to the disk, and return its length in bytes; 0 for one that is not there."""
    try:
        descriptor = os.open(journal, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def cut_back(journal: Path, length: int) -> int:
    """Cut off what stands behind `length`, torn or whole; return how many rows that were.

    Raises OrderchainError when the journal is shorter: rows that are in the stored state would be
    in no journal, since they are not delivered again.
    """
    size = journal.stat().st_size if journal.exists() else 0
    if size < length:
        raise OrderchainError(
            f"{journal} has {size} bytes, but {length} were stored with the state"
        )
    if size == length:
        return 0
    rows = 0
    with journal.open("r+b") as file:
        file.seek(length)
        while piece := file.read(_READ_BYTES):
            rows += piece.count(b"\n")
        file.truncate(length)
    return rows
