"""What is to be done with a delivery whose time has come: sent, left in its queue, or given up.

Pure: the sweep reads the rows, asks here, and writes what it is told.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from orderchain.backoff import step_seconds
from orderchain.counted import counted
from outbox.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox.destination import Destination

Place = tuple[str, str, int]
"""A consumer, a topic, a partition."""

CLAIMS_MAX: Final = 20
"""Claims in a row without a word of what became of them. They are no tries: a process that is
killed between claim and send has sent nothing. But what ends its process each time would do so for
ever; with the default times this many take two and a half hours."""


class Verdict(enum.Enum):
    """What the sweep does with a delivery that is due."""

    SEND = "send"
    WAIT = "wait"
    """It is on the broker, behind what its consumer has not finished yet: no try, not sent."""
    GIVE_UP = "give up"
    """Its tries are used up: abnormal."""


class Due(Struct, frozen=True, gc=False):
    """A delivery whose `next_send_at` has come."""

    message_id: UUID
    consumer: str
    destination: str
    status: int
    send_count: int
    """Tries of this round so far: sends of which it is known what became of them."""
    claim_count: int
    """Claims since then, of which nobody wrote what became of them: its process ended, most likely
    before it had sent anything."""
    topic: str | None
    partition: int | None
    offset: int | None
    """None: not known to be on the broker, or the acknowledgement of the last send was lost."""
    sent_seconds: float | None
    """Since the last acknowledged send."""
    size: int | None
    """Bytes of the payload; None where the message itself is missing."""


def judge(due: Due, rules: Destination, progress: Mapping[Place, int]) -> Verdict:
    """Return what to do with `due`.

    `progress` holds, by place, the smallest offset that the consumer has not finished: a record
    below it was read and is gone, one at or above it is merely queued.
    """
    if due.status == Status.CONFIRMED and _is_queued(due, rules, progress):
        return Verdict.WAIT
    is_left = due.send_count < rules.tries_max and due.claim_count < CLAIMS_MAX
    return Verdict.SEND if is_left else Verdict.GIVE_UP


def why_given_up(due: Due, rules: Destination) -> str:
    """Return what is noted with a delivery that becomes abnormal."""
    if due.send_count >= rules.tries_max:
        return f"no end after {counted(due.send_count, 'try', 'tries')}"
    claims = counted(due.claim_count, "time")
    return f"claimed {claims} to be sent, by processes that ended before they had written more"


def _is_queued(due: Due, rules: Destination, progress: Mapping[Place, int]) -> bool:
    if not rules.resend_filter:
        return False
    if due.topic is None or due.partition is None or due.offset is None:
        return False
    if due.sent_seconds is None or due.sent_seconds >= rules.queue_seconds_max:
        return False
    # A consumer that has told nothing has finished nothing.
    return due.offset >= progress.get((due.consumer, due.topic, due.partition), 0)


def wait_seconds(rules: Destination, before: int) -> float:
    """Return how long the next send may stay without an end, after so many claims before it."""
    return step_seconds(rules.resend_seconds, rules.resend_seconds_max, before)


def queue_wait_seconds(due: Due, rules: Destination) -> float:
    """Return when to look again at a delivery that is queued.

    The longer it waits already the longer: a backlog of many messages must not cost a write each
    at every round.
    """
    waited = due.sent_seconds or 0.0
    left = rules.queue_seconds_max - waited
    return min(max(waited, rules.resend_seconds), rules.resend_seconds_max, max(left, 1.0))
