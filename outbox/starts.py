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
    """Behind the last record: only what comes from now on."""
    TIME = "time"
    """The first record whose time is at or after a given one."""


class StartAt(Config, frozen=True, kw_only=True):
    """Where to begin in a partition.

    In a consumer's settings it says where it begins that has **no committed offset yet**, and is
    not looked at again once there is one: each restart, and each partition that moves from one
    process to another, would otherwise skip or repeat. To move a consumer that has one, stop it and
    call `move_start`.
    """

    position: StartFrom = StartFrom.FIRST
    time_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """Nanoseconds since 1970 UTC, with `time` only. Records carry milliseconds: the first record at
    or after the millisecond that holds this is the first."""

    def __post_init__(self) -> None:
        """Raises SettingError where a time is missing, or stands where none belongs."""
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
    """The offset behind the last record."""
    at_time: int | None = None
    """The first offset whose record is at or after the time asked for; None: there is none."""


def chosen_offset(start: StartAt, ends: PartitionEnds) -> int:
    """Return the offset of `start`. A time behind every record is the end."""
    match start.position:
        case StartFrom.FIRST:
            return ends.first
        case StartFrom.END:
            return ends.end
        case StartFrom.TIME:
            return ends.end if ends.at_time is None else ends.at_time


def begin_offset(start: StartAt, committed: int | None, ends: PartitionEnds) -> int:
    """Return where a consumer begins: at its committed offset, else where `start` says.

    A committed offset that the broker does not hold leads to the oldest record that it has: below
    that, records were dropped unread; above the end, the log was cut and may have been written
    anew. Repeats are harmless, and nothing that is there is skipped.
    """
    if committed is None:
        return chosen_offset(start, ends)
    return committed if is_held(committed, ends) else ends.first


def is_held(offset: int, ends: PartitionEnds) -> bool:
    """Say whether the broker can go on at `offset`."""
    return ends.first <= offset <= ends.end
