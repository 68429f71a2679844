"""How far a consumer is in one partition: the smallest unfinished offset, and nothing above it.

A consumer that works on several messages at once finishes them out of order. It commits the offset
below which everything is finished, so a crash repeats some messages and never skips one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


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
        """How many received offsets are not finished."""
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

    def pass_to(self, position: int) -> None:
        """Record that no record is between the last received one and `position`."""
        self._next = max(self._next, position)


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
