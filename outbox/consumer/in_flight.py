"""Messages in flight in a consumer, and the offsets at which it begins and commits. No I/O.

A consumer that works on several messages at once finishes them out of order. It commits the offset
below which everything is finished, so a crash repeats some messages and never skips one.

Messages of one key are worked on one after the other, in the order received, and so are several
records of one message; all others are worked on at once. A queue is a key, or the message's own id
if it has no key.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from chain_kernel.start_at import StartAt


Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


class PartitionProgress:
    """The received offsets of one partition, from `start` on.

    Offsets rise, but may skip numbers: compaction and the broker's own marks take some.
    """

    def __init__(self, start: int) -> None:
        self._next = start  # above every received offset; never falls
        self._received: deque[int] = deque()  # rising; its first one is not finished
        self._unfinished: set[int] = set()  # members of _received

    @property
    def smallest_unfinished(self) -> int:
        """The offset to commit: all below it is finished. Never falls."""
        return self._received[0] if self._received else self._next

    @property
    def unfinished(self) -> int:
        """The number of received offsets that are not finished."""
        return len(self._unfinished)

    def receive(self, offset: int) -> bool:
        """Record a received offset. False for one that is not new: below those received."""
        if offset < self._next:
            return False
        self._received.append(offset)
        self._unfinished.add(offset)
        self._next = offset + 1
        return True

    def finish(self, offset: int) -> None:
        """Record that an offset is dealt with: applied, parked, or not to be worked on.

        A second call, or one for an offset that was never received here, changes nothing: a
        partition may have gone and come back meanwhile.
        """
        self._unfinished.discard(offset)
        while self._received and self._received[0] not in self._unfinished:
            self._received.popleft()


class ConsumeProgress:
    """The progress of every partition that this process has been given."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, PartitionProgress] = {}
        self._committed: dict[Partition, int] = {}

    def assign(self, partition: Partition, start: int) -> None:
        """Begin a partition at `start`, whatever was known of it before."""
        self._partitions[partition] = PartitionProgress(start)
        self._committed[partition] = start

    def revoke(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions: another process works on them now."""
        for partition in partitions:
            self._partitions.pop(partition, None)
            self._committed.pop(partition, None)

    def of(self, partition: Partition) -> PartitionProgress | None:
        """Return the progress of one partition; None for one that is not ours."""
        return self._partitions.get(partition)

    def smallest_unfinished(self) -> dict[Partition, int]:
        """Return the smallest unfinished offset of each partition."""
        return {name: held.smallest_unfinished for name, held in self._partitions.items()}

    def to_commit(self) -> dict[Partition, int]:
        """Return what has moved since the last commit; empty when nothing has."""
        return {
            name: offset
            for name, offset in self.smallest_unfinished().items()
            if offset > self._committed[name]
        }

    def committed(self, offsets: dict[Partition, int]) -> None:
        """Record a commit; nothing is kept of partitions that went meanwhile."""
        for name, offset in offsets.items():
            if name in self._committed:
                self._committed[name] = max(self._committed[name], offset)

    def committed_offsets(self) -> dict[Partition, int]:
        """Return the offset of each partition from which on records may come again."""
        return dict(self._committed)


@dataclass(frozen=True)
class PartitionEnds:
    """The offsets of one partition at the broker."""

    first: int
    """The oldest offset that it holds."""
    end: int
    """The offset after the last record."""
    at_time: int | None = None
    """The first offset whose record is at or after the time asked for; None: there is none."""


def chosen_offset(start_at: StartAt, ends: PartitionEnds) -> int:
    """Return the offset of `start_at`. A time after every record is the end."""
    if start_at.at == "beginning":
        return ends.first
    return ends.end if ends.at_time is None else ends.at_time


def begin_offset(first_start: int | None, committed: int | None, ends: PartitionEnds) -> int:
    """Return where a consumer begins: at its committed offset, otherwise where it first began.

    If it had not begun there (None), the partition was added later: the oldest record is the first.
    So it is for an offset that the broker does not hold: below what it has, records were dropped
    unread; above the end, the log was cut and may have been rewritten. Repeats are harmless, and no
    existing record is skipped.
    """
    wanted = first_start if committed is None else committed
    return wanted if wanted is not None and is_held(wanted, ends) else ends.first


def is_held(offset: int, ends: PartitionEnds) -> bool:
    """Return whether the broker can go on at `offset`."""
    return ends.first <= offset <= ends.end


class _Queued(Protocol):
    @property
    def queue_key(self) -> bytes: ...

    @property
    def size(self) -> int: ...


Item = TypeVar("Item", bound=_Queued)


class _KeyQueue(Generic[Item]):
    __slots__ = ("taken", "waiting")

    def __init__(self) -> None:
        self.taken = 0  # items that are worked on
        self.waiting: deque[Item] = deque()  # what waits until there are none


class KeyQueues(Generic[Item]):
    """Queues of items: each is ready, or taken, or waits for one of its queue."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when `take` may return more than before, or there is more room."""
        self._changed = changed
        self._ready: deque[Item] = deque()
        self._queues: dict[bytes, _KeyQueue[Item]] = {}
        self._waiting = 0
        self._taken = 0
        self.held_bytes = 0  # the sizes of all that is held

    @property
    def held(self) -> int:
        """The number of items, taken ones included."""
        return len(self._ready) + self._waiting + self._taken

    @property
    def has_ready(self) -> bool:
        """True if `take` may return something. It may still find that all must wait."""
        return bool(self._ready)

    @property
    def ready(self) -> Iterable[Item]:
        """The items that `take` looks at next, in this order."""
        return self._ready

    def add(self, items: Iterable[Item]) -> None:
        """Add `items` after all others."""
        for item in items:
            self._ready.append(item)
            self.held_bytes += item.size
        self._changed()

    def take(self, most: int) -> list[Item]:
        """Return up to `most` items whose queue has no earlier one that is worked on elsewhere.

        Items of one queue may come together: the caller works on them in this order.
        """
        taken: list[Item] = []
        while self._ready and len(taken) < most:
            item = self._ready.popleft()
            queue = self._queues.get(item.queue_key)
            if queue is None:
                taken.append(item)
            else:
                queue.waiting.append(item)
                self._waiting += 1
        for item in taken:
            name = item.queue_key
            queue = self._queues.get(name)
            if queue is None:
                queue = self._queues[name] = _KeyQueue()
            queue.taken += 1
        self._taken += len(taken)
        return taken

    def release(self, items: Iterable[Item]) -> None:
        """Record that taken items are dealt with; what waited for them is next."""
        for item in items:
            self.held_bytes -= item.size
            self._leave(item)
        self._changed()

    def put_back(self, items: Sequence[Item]) -> None:
        """Take items back that were taken and not dealt with; they are the next of their queues.

        Items of one queue come back in one call, or the last ones first: each goes to the front.
        """
        for item in reversed(items):
            self._queues[item.queue_key].waiting.appendleft(item)
            self._waiting += 1
        for item in reversed(items):  # the last ones first, so that the first ones come first
            self._leave(item)
        self._changed()

    def drop(self, is_dropped: Callable[[Item], bool]) -> None:
        """Forget the items that match and are not taken."""
        self._ready = self._without(self._ready, is_dropped)
        for queue in self._queues.values():
            queue.waiting = self._without(queue.waiting, is_dropped)
        self._waiting = sum(len(queue.waiting) for queue in self._queues.values())

    def _without(self, items: deque[Item], is_dropped: Callable[[Item], bool]) -> deque[Item]:
        kept = deque(item for item in items if not is_dropped(item))
        if len(kept) < len(items):
            self.held_bytes -= sum(item.size for item in items) - sum(item.size for item in kept)
        return kept

    def _leave(self, item: Item) -> None:
        queue = self._queues[item.queue_key]
        queue.taken -= 1
        self._taken -= 1
        if queue.taken == 0:
            del self._queues[item.queue_key]
            self._waiting -= len(queue.waiting)
            self._ready.extendleft(reversed(queue.waiting))


class PartitionFloors:
    """The floors of the records of one partition: which messages may still come there.

    A floor is an id below which no message will come. Each record carries one of its sender's:
    what is sent after the record is not below it, nor is the record itself. So it holds for all
    that follows in the partition, since a topic has one sender: the relays of one outbox database,
    or fire after commit. None: it is not known, which keeps the inbox from forgetting anything.
    """

    def __init__(self) -> None:
        # By round of retention: its last offset, and its lowest floor.
        self._rounds: list[tuple[int, UUID | None]] = []
        self.is_quiet = True
        """True if nothing was heard since the last `take`."""

    def hear(self, offset: int, floor: UUID | None) -> None:
        """Note the floor of a record."""
        if not self.is_quiet:
            floor = _lower(self._rounds.pop()[1], floor)
        self._rounds.append((offset, floor))
        self.is_quiet = False

    def take(self, committed: int) -> UUID | None:
        """Return the floor of all that may still come, and end the round. Something was heard.

        What is not read yet is above the floors of the last round; what is read, from the offset
        `committed` on, may come again.
        """
        last = self._rounds.pop()
        self._rounds = [each for each in self._rounds if each[0] >= committed] + [last]
        self.is_quiet = True
        lowest = last[1]
        for _, floor in self._rounds:
            lowest = _lower(lowest, floor)
        return lowest


def _lower(one: UUID | None, other: UUID | None) -> UUID | None:
    return None if one is None or other is None else min(one, other)
