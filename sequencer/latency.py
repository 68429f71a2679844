"""How long something takes, in as few numbers as an operator reads."""

from __future__ import annotations

from msgspec import Struct

_WEIGHT = 0.1
"""Share of the newest value in the running mean: about the last ten count."""


class Latency(Struct, frozen=True, kw_only=True):
    """Seconds that one kind of work took; zeros before the first."""

    count: int = 0
    last_seconds: float = 0.0
    recent_seconds: float = 0.0
    """Running mean of about the last ten."""
    highest_seconds: float = 0.0

    def with_value(self, seconds: float) -> Latency:
        """Return what is known once `seconds` were measured too."""
        return Latency(
            count=self.count + 1,
            last_seconds=seconds,
            recent_seconds=(
                seconds
                if self.count == 0
                else self.recent_seconds + _WEIGHT * (seconds - self.recent_seconds)
            ),
            highest_seconds=max(self.highest_seconds, seconds),
        )
