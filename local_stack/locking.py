"""A lock between processes, and how a start reports its progress."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from local_stack.errors import FolderUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


Progress = Callable[[str], None]
"""Takes one line, without a newline. Called from the thread that called the stack."""


def silent(line: str) -> None:
    """Drop the line."""


_POLL_S: Final = 0.1


@contextmanager
def exclusive(path: Path, *, deadline_s: float, progress: Progress = silent) -> Iterator[None]:
    """Hold the lock file `path` (made when missing, never removed: removing it would allow two
    holders).

    The kernel releases it when the process ends, however it ends.

    Raises:
        FolderUnusable: the file cannot be opened, or another process held it for `deadline_s`.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FolderUnusable(f"cannot open {path}: {error.strerror}") from error
    try:
        _acquire(descriptor, path, deadline_s, progress)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, deadline_s: float, progress: Progress) -> None:
    end = time.monotonic() + deadline_s
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise FolderUnusable(
                    f"another process has held {path} for {deadline_s:.0f} s"
                ) from None
            if not told:
                progress(f"Waiting for another process that holds {path}")
                told = True
            time.sleep(_POLL_S)
        else:
            return
