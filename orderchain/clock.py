"""Time as a port: cores receive values, shells ask a clock, simulations bring their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks in one. The wall clock never decides anything about order."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds from an arbitrary start; never falls."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970 UTC; may step either way."""
        ...


class SystemClock:
    """The clocks of this machine: the functions of `time` themselves, at no extra cost."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)
