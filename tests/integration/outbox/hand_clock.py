from __future__ import annotations

from datetime import UTC, datetime, timedelta


class HandClock:
    """A wall clock that the test moves, from now on."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def wall_ns(self) -> int:
        return int(self.now.timestamp() * 1e6) * 1_000

    def monotonic_ns(self) -> int:
        return self.wall_ns()

    def go(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
