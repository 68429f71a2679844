"""Which messages may still come in a partition, by what its records say. No I/O.

A floor is an id below which no message will come. Each record carries one of its sender's: what is
sent after the record is not below it, nor is the record itself. So it holds for all that follows in
the partition, since a topic has one sender: the relays of one outbox database, or fire after
commit. None: it is not known, which keeps the inbox from forgetting anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID


class PartitionFloors:
    """The floors of the records of one partition, those of one round of upkeep together."""

    def __init__(self) -> None:
        self._rounds: list[tuple[int, UUID | None]] = []  # last offset and lowest floor of each
        self.is_quiet = True
        """Whether nothing was heard since the last `take`."""

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
