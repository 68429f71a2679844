"""Memory of this process: against pauses and costs that Python's defaults would bring to orders."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

_YOUNG_OBJECTS: Final = 50_000
_MIDDLE_PASSES: Final = 20
_OLD_PASSES: Final = 100

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Numbers of settings, in glibc's malloc.h."""
_KEPT_BYTES: Final = 32 * 2**20
"""Larger than any frame and any page, and the most that glibc takes."""

_is_calm = False


def calm_collector() -> None:
    """Make the collector run rarely, exclude the objects that exist at the start, and keep what is
    freed.

    The first call of a process does it. `open_sequencer` and `open_receiver` call it, unless their
    tuning says no: else the collector pauses a service for 20 to 35 ms. An order that is submitted
    alone makes a future and often a task, which are freed without the collector. With Python's own
    settings, the collector passes over all of them repeatedly; with 10,000 orders waiting that
    takes a third of the time. Cycles are still found, only later.
    """
    global _is_calm
    if _is_calm:
        return
    _is_calm = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_PASSES, _OLD_PASSES)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Have glibc keep the memory of frames and images, which each batch needs again.

    By default it goes back to the system, and each page of it is made again at its first byte: a
    frame took 215 ns per order instead of 100 for that, with payloads of 1,024 bytes 1,620 instead
    of 440.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BYTES)
