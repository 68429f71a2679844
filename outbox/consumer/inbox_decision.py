"""Decides what becomes of a received message: work, or something else. Does no I/O.

A fast filter is asked first, then the database. The filter is believed in one case only: when it
says that the message was applied. In all other cases the database decides. So a filter that has
lost its memory, or is down, costs database work and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Seen(Enum):
    """What a fast filter says of a message id."""

    NEW = "new"
    """The filter did not know the id; it does now, as being worked on."""
    WORKING = "working"
    """Some worker took it, and has neither finished nor failed. That worker may be dead."""
    DONE = "done"
    """It was applied, and the transaction of its effect has committed."""


class InboxVerdict(Enum):
    """What to do with a message."""

    WORK = "work"
    """It is new: its id is in our transaction, which the effect joins."""
    DONE = "done"
    """It was applied before: no work, but its confirm is sent again."""
    WAIT = "wait"
    """Another worker is on it: not done, and not ours. Look again later."""
    PARKED = "parked"
    """It has failed, and is parked for a retry: no work, and the sender is informed until when."""
    BEHIND = "behind"
    """An earlier message of its key is parked: park it after that one."""
    TOO_OLD = "too old"
    """The inbox no longer knows what was applied so long ago: a person must look."""
    DEAD = "dead"
    """It is a dead letter, or was abandoned: no work, no confirm."""


@dataclass(frozen=True)
class StoredDelivery:
    """What the database knows of a message that could not be claimed."""

    is_applied: bool = False
    is_parked: bool = False
    is_dead: bool = False
    is_key_parked: bool = False
    is_below_horizon: bool = False


def by_filter(seen: Seen, *, looked_before: bool) -> InboxVerdict | None:
    """Return what the filter settles; None if the database must decide.

    A worker that has the message is given time once. After that the database is asked, since the
    mark may come from a process that was killed.
    """
    if seen is Seen.DONE:
        return InboxVerdict.DONE
    if seen is Seen.WORKING and not looked_before:
        return InboxVerdict.WAIT
    return None


def by_database(*, is_claimed: bool, stored: StoredDelivery) -> InboxVerdict:
    """Return what the database settles. `stored` counts only for what could not be claimed."""
    if is_claimed:
        return InboxVerdict.WORK
    if stored.is_applied:  # first of all: what was applied stays so, however old
        return InboxVerdict.DONE
    if stored.is_dead:
        return InboxVerdict.DEAD
    if stored.is_parked:
        return InboxVerdict.PARKED
    if stored.is_below_horizon:
        return InboxVerdict.TOO_OLD
    if stored.is_key_parked:
        return InboxVerdict.BEHIND
    # The obstacle has gone between the two statements, such as by a retry that succeeded.
    return InboxVerdict.WAIT
