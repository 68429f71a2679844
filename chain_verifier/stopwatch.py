"""Measures how long a step took."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """Give a function that tells the seconds since the start, to the millisecond."""
    began = time.monotonic()
    yield lambda: round(time.monotonic() - began, 3)
