import time
from datetime import UTC, datetime


class HandClock:
    """Both clocks in one, moved by the test alone; from now on unless it says from when."""

    def __init__(self, wall_ns: int | None = None) -> None:
        # Whole microseconds, as a database keeps them.
        self.now_ns = time.time_ns() // 1_000 * 1_000 if wall_ns is None else wall_ns

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ns / 1e9, UTC)

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def go(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
