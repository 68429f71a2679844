"""How fast a client may go, and how much it may have at work. Pure: the time is passed in."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct


class TokenBucket(Struct):
    """A bucket of tokens that fills at a steady rate up to its size; each thing done takes some."""

    per_second: float
    burst: int
    level: float
    filled_ns: int

    @classmethod
    def full(cls, per_second: float, burst: int, now_ns: int) -> TokenBucket:
        """Return a full one."""
        return cls(per_second, burst, float(burst), now_ns)

    def take(self, count: int, now_ns: int) -> float:
        """Take `count` and return 0; or take nothing, and return the seconds until they are there.

        A count above what the bucket ever holds passes once it is full: such a request must be
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


class Room:
    """What is at work at once, counted in one unit: in all, and per client.

    Nobody waits for room: a request without room is refused, so that a client that leaves its
    requests unfinished harms only itself.
    """

    def __init__(self, at_most: int, client_at_most: int) -> None:
        self._at_most = at_most
        self._client_at_most = client_at_most
        self._taken: Counter[str] = Counter()
        self.total = 0
        """All that is taken."""

    def has_client_room(self, client: str, count: int) -> bool:
        """Return whether the client's own share has room for so much more."""
        return self._taken[client] + count <= self._client_at_most

    def has_room(self, count: int) -> bool:
        """Return whether there is room for so much more, for any client."""
        return self.total + count <= self._at_most

    def take(self, client: str, count: int) -> None:
        """Take so much; the caller has checked that there is room."""
        self._taken[client] += count
        self.total += count

    def give_back(self, client: str, count: int) -> None:
        """Give back what was taken."""
        self._taken[client] -= count
        self.total -= count
        if not self._taken[client]:
            del self._taken[client]
