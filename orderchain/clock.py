"""Time, behind a door: cores are handed values, shells ask a clock, simulations bring their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks in one. Nothing about order is ever decided by the wall clock."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds from an arbitrary start; never falls."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970 UTC; may step either way."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def monotonic_ns(self) -> int:
        """Return `time.monotonic_ns()`."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """Return `time.time_ns()`."""
        return time.time_ns()
