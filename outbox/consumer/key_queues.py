"""Decides which received messages may be worked on now. Does no I/O.

Messages of one key are worked on one after the other, in the order received, and so are several
records of one message; all others are worked on at once. A lane is a key, or the message's own id
if it has no key.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class _Laned(Protocol):
    @property
    def lane(self) -> bytes: ...

    @property
    def size(self) -> int: ...


Item = TypeVar("Item", bound=_Laned)


class _KeyQueue(Generic[Item]):
    """A lane with items that are being worked on."""

    __slots__ = ("taken", "waiting")

    def __init__(self) -> None:
        self.taken = 0  # items that are worked on
        self.waiting: deque[Item] = deque()  # what waits until there are none


class Lanes(Generic[Item]):
    """What waits to be worked on: each item is ready, or waits for one of its lane, or is taken."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when `take` may return more than before, or there is more room."""
        self._changed = changed
        self._ready: deque[Item] = deque()
        self._lanes: dict[bytes, _KeyQueue[Item]] = {}
        self._waiting = 0
        self._taken = 0
        self.held_bytes = 0  # the sizes of all that is held

    @property
    def held(self) -> int:
        """How many items are in here, taken ones included."""
        return len(self._ready) + self._waiting + self._taken

    @property
    def has_ready(self) -> bool:
        """Whether `take` may return something. It may still find that all must wait."""
        return bool(self._ready)

    def add(self, items: Iterable[Item]) -> None:
        """Add `items` after all others."""
        for item in items:
            self._ready.append(item)
            self.held_bytes += item.size
        self._changed()

    def take(self, most: int) -> list[Item]:
        """Return up to `most` items whose lane has no earlier one that is worked on elsewhere.

        Items of one lane may come together: the caller works on them in this order.
        """
        taken: list[Item] = []
        while self._ready and len(taken) < most:
            item = self._ready.popleft()
            lane = self._lanes.get(item.lane)
            if lane is None:
                taken.append(item)
            else:
                lane.waiting.append(item)
                self._waiting += 1
        for item in taken:
            name = item.lane
            lane = self._lanes.get(name)
            if lane is None:
                lane = self._lanes[name] = _KeyQueue()
            lane.taken += 1
        self._taken += len(taken)
        return taken

    def release(self, items: Iterable[Item]) -> None:
        """Record that taken items are dealt with; what waited for them is next."""
        for item in items:
            self.held_bytes -= item.size
            self._leave(item)
        self._changed()

    def put_back(self, items: Sequence[Item]) -> None:
        """Take items back that were taken and not dealt with; they are the next of their lanes."""
        for item in reversed(items):
            self._lanes[item.lane].waiting.appendleft(item)
            self._waiting += 1
        for item in reversed(items):  # the last ones first, so that the first ones come first
            self._leave(item)
        self._changed()

    def drop(self, is_dropped: Callable[[Item], bool]) -> None:
        """Forget the items that match and are not taken."""
        self._ready = self._without(self._ready, is_dropped)
        for lane in self._lanes.values():
            lane.waiting = self._without(lane.waiting, is_dropped)
        self._waiting = sum(len(lane.waiting) for lane in self._lanes.values())

    def _without(self, items: deque[Item], is_dropped: Callable[[Item], bool]) -> deque[Item]:
        kept = deque(item for item in items if not is_dropped(item))
        if len(kept) < len(items):
            self.held_bytes -= sum(item.size for item in items) - sum(item.size for item in kept)
        return kept

    def _leave(self, item: Item) -> None:
        lane = self._lanes[item.lane]
        lane.taken -= 1
        self._taken -= 1
        if lane.taken == 0:
            del self._lanes[item.lane]
            self._waiting -= len(lane.waiting)
            self._ready.extendleft(reversed(lane.waiting))
