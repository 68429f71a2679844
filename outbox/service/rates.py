"""How fast a client may go. Pure: the time is handed in."""

from __future__ import annotations

from msgspec import Struct


class Bucket(Struct):
    """A bucket of tokens that fills at a steady rate up to its size; each thing done takes some."""

    per_second: float
    burst: int
    level: float
    filled_ns: int

    @classmethod
    def full(cls, per_second: float, burst: int, now_ns: int) -> Bucket:
        """Return a full one."""
        return cls(per_second, burst, float(burst), now_ns)

    def take(self, count: int, now_ns: int) -> float:
        """Take `count` and return 0; or take nothing, and return the seconds until they are there.

        More than the bucket ever holds are let through once it is full: such a request must be
        possible, and it then waits for nobody but pays with a level below zero.
        """
        elapsed = max(now_ns - self.filled_ns, 0) / 1e9
        self.level = min(self.level + elapsed * self.per_second, float(self.burst))
        self.filled_ns = max(now_ns, self.filled_ns)
        needed = min(count, self.burst)
        if self.level >= needed:
            self.level -= count
            return 0.0
        return (needed - self.level) / self.per_second
