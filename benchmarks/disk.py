"""The disk's own stalls: a thread flushes 8 KB every 10 ms, and notes how long each flush took.

A disk of a virtual machine stalls now and then, whatever writes to it. An order that waits for such
a flush says nothing about the engine, so latencies are shown with these times and without them.
"""

from __future__ import annotations

import os
import time
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pathlib import Path

STALL_NS: Final = 10_000_000
"""A flush that takes longer is a stall: ten times what one takes at its 99th percentile."""

_PACE_NS: Final = 10_000_000
FLUSHED: Final = bytes(8_192)


class DiskWatch:
    """Flushes beside a run, from its begin to the end of the block."""

    def __init__(self, folder: Path) -> None:
        """Watch the disk on which `folder` is."""
        self._folder = folder
        self._ended = Event()
        self._thread = Thread(target=self._flush, name="disk watch", daemon=True)
        self.flushes: list[tuple[int, int]] = []
        """Beginning and end of each flush, by the monotonic clock."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def stalls(self, since_ns: int = 0) -> list[tuple[int, int]]:
        """Return begin and end of each stall that ended after `since_ns`."""
        return [
            (began_ns, ended_ns)
            for began_ns, ended_ns in self.flushes
            if ended_ns - began_ns > STALL_NS and ended_ns > since_ns
        ]

    def _flush(self) -> None:
        with TemporaryFile(dir=self._folder) as file:
            number, due_ns = file.fileno(), time.monotonic_ns()
            while not self._ended.wait(max(due_ns - time.monotonic_ns(), 0) / 1e9):
                began_ns = time.monotonic_ns()
                os.pwrite(number, FLUSHED, 0)
                os.fdatasync(number)
                self.flushes.append((began_ns, time.monotonic_ns()))
                due_ns = max(due_ns + _PACE_NS, began_ns)
