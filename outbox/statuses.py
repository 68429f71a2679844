"""The statuses of a delivery, and every change between them that may happen.

A delivery is one message for one consumer. The table below is complete: a change that is not in it
does not happen. The statements take the statuses that they expect from here (see `sources`), so
neither a relay nor a person can bypass it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

from outbox.errors import TransitionRefused

if TYPE_CHECKING:
    from collections.abc import Iterator


class Status(enum.IntEnum):
    """The state of a delivery. The numbers are stored in the database and never change."""

    INIT = 0
    """Stored with the business change; not known to be on the broker."""
    CONFIRMED = 1
    """The broker has acknowledged it. Final if the destination's consumers do not confirm."""
    CONSUMED = 2
    """The consumer has confirmed that it applied it. Final."""
    ABNORMAL = 3
    """Tries used up, or check-back gave up. Waits for a person."""
    PREPARED = 4
    """Stored, but its sender has not yet decided. Never sent."""
    CANCELLED = 5
    """Its sender decided against it. Final."""
    ABANDONED = 6
    """Ended by a person, with name and reason. Final."""


class Change(enum.Enum):
    """A change of a delivery's status."""

    ACKNOWLEDGED = "acknowledged"
    """The broker has it."""
    APPLIED = "applied"
    """The consumer's confirm came, in time, late or early."""
    TRIES_USED_UP = "tries used up"
    """It was sent as often as allowed, and its time has passed again."""
    COMMITTED = "committed"
    """The sender decided for it: its local transaction is done."""
    ROLLED_BACK = "rolled back"
    """The sender decided against it."""
    CHECKS_USED_UP = "checks used up"
    """Check-back was answered as often as allowed, and never with a decision."""
    RETRIED = "retried"
    """A person gives it a new round of tries, or of checks."""
    ABANDONED = "abandoned"
    """A person ends it."""


class Transition(NamedTuple):
    """One line of the table."""

    status: Status
    is_decided: bool
    """False until its sender has said whether to send it: in `prepared`, and in an `abnormal` that
    came from there."""
    change: Change
    becomes: Status


TRANSITIONS: Final = (
    Transition(Status.PREPARED, False, Change.COMMITTED, Status.INIT),
    Transition(Status.PREPARED, False, Change.ROLLED_BACK, Status.CANCELLED),
    Transition(Status.PREPARED, False, Change.CHECKS_USED_UP, Status.ABNORMAL),
    # A late decision of the sender, or one that a person records in its place.
    Transition(Status.ABNORMAL, False, Change.COMMITTED, Status.INIT),
    Transition(Status.ABNORMAL, False, Change.ROLLED_BACK, Status.CANCELLED),
    Transition(Status.INIT, True, Change.ACKNOWLEDGED, Status.CONFIRMED),
    # Sent again, acknowledged again.
    Transition(Status.CONFIRMED, True, Change.ACKNOWLEDGED, Status.CONFIRMED),
    Transition(Status.CONFIRMED, True, Change.APPLIED, Status.CONSUMED),
    # Early: the consumer's confirm came before the relay wrote the broker's acknowledgement. Late:
    # a person is already looking at it.
    Transition(Status.INIT, True, Change.APPLIED, Status.CONSUMED),
    Transition(Status.ABNORMAL, True, Change.APPLIED, Status.CONSUMED),
    Transition(Status.INIT, True, Change.TRIES_USED_UP, Status.ABNORMAL),
    Transition(Status.CONFIRMED, True, Change.TRIES_USED_UP, Status.ABNORMAL),
    Transition(Status.ABNORMAL, True, Change.RETRIED, Status.INIT),
    Transition(Status.ABNORMAL, False, Change.RETRIED, Status.PREPARED),
    # By name only: a mistaken destination, a consumer that never was.
    Transition(Status.INIT, True, Change.ABANDONED, Status.ABANDONED),
    Transition(Status.CONFIRMED, True, Change.ABANDONED, Status.ABANDONED),
    Transition(Status.ABNORMAL, True, Change.ABANDONED, Status.ABANDONED),
    Transition(Status.ABNORMAL, False, Change.ABANDONED, Status.ABANDONED),
)
"""Every change that may happen; nothing else does."""

_BECOMES: Final = {
    (line.status, line.is_decided, line.change): line.becomes for line in TRANSITIONS
}

FINAL: Final = frozenset({Status.CONSUMED, Status.CANCELLED, Status.ABANDONED})
"""Statuses that end a delivery. `confirmed` does so too if the destination asks for no confirm."""

SENDABLE: Final = frozenset({Status.INIT, Status.CONFIRMED})
"""Statuses that the sweep looks at."""


def after(status: Status, change: Change, *, is_decided: bool = True) -> Status:
    """Return the status that `change` leads to.

    `is_decided` is False for a delivery whose sender never decided. Raises TransitionRefused if the
    table has no such line; nothing is changed then.
    """
    becomes = _BECOMES.get((status, is_decided, change))
    if becomes is None:
        expected = ", ".join(sorted({line.status.name.lower() for line in _lines(change)}))
        raise TransitionRefused(status.name.lower(), change.value, expected)
    return becomes


def sources(change: Change, *, is_decided: bool = True) -> tuple[int, ...]:
    """Return the statuses that allow `change`, for the statements that write it."""
    return tuple(
        sorted(int(line.status) for line in _lines(change) if line.is_decided == is_decided)
    )


def _lines(change: Change) -> Iterator[Transition]:
    return (line for line in TRANSITIONS if line.change is change)
