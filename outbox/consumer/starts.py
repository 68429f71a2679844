"""Where a consumer begins in each partition (mode 12). Decides; does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from orderchain.config import Config
from orderchain.errors import SettingError


class StartFrom(StrEnum):
    """The kinds of start positions."""

    FIRST = "first"
    """The oldest record that the broker still holds."""
    END = "end"
    """After the last record: only what comes from now on."""
    TIME = "time"
    """The first record whose time is at or after a given one."""


class ConsumeStart(Config, frozen=True, kw_only=True):
    """Where to begin in a partition.

    In a consumer's settings it says where a consumer with **no committed offset yet** begins. It is
    ignored once there is one: otherwise each restart, and each partition that moves from one
    process to another, would skip or repeat. To move a consumer that has one, stop it and call
    `move_start`.
    """

    position: StartFrom = StartFrom.FIRST
    time_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """Nanoseconds since 1970 UTC, with `time` only. Records carry milliseconds: the first record at
    or after the millisecond that holds this is the first."""

    def __post_init__(self) -> None:
        """Raises SettingError if a time is missing, or is given where none belongs."""
        super().__post_init__()
        if (self.position is StartFrom.TIME) != (self.time_ns is not None):
            expected = f"one with position={StartFrom.TIME.value!r}, and none else"
            raise SettingError("time_ns", self.time_ns, expected)

    @property
    def time_ms(self) -> int | None:
        """The time as records carry it."""
        return None if self.time_ns is None else self.time_ns // 1_000_000


@dataclass(frozen=True)
class PartitionEnds:
    """What the broker says of one partition."""

    first: int
    """The oldest offset that it holds."""
    end: int
    """The offset after the last record."""
    at_time: int | None = None
    """The first offset whose record is at or after the time asked for; None: there is none."""


def chosen_offset(start: ConsumeStart, ends: PartitionEnds) -> int:
    """Return the offset of `start`. A time after every record is the end."""
    match start.position:
        case StartFrom.FIRST:
            return ends.first
        case StartFrom.END:
            return ends.end
        case StartFrom.TIME:
            return ends.end if ends.at_time is None else ends.at_time


def begin_offset(start: ConsumeStart, committed: int | None, ends: PartitionEnds) -> int:
    """Return where a consumer begins: at its committed offset, otherwise where `start` says.

    A committed offset that the broker does not hold leads to the oldest record that it has: below
    that, records were dropped unread; above the end, the log was cut and may have been rewritten.
    Repeats are harmless, and no existing record is skipped.
    """
    if committed is None:
        return chosen_offset(start, ends)
    return committed if is_held(committed, ends) else ends.first


def is_held(offset: int, ends: PartitionEnds) -> bool:
    """Return whether the broker can go on at `offset`."""
    return ends.first <= offset <= ends.end
