"""Decisions on a delivery whose time has come: send it, leave it, give it up, or ask its sender.

Pure: the sweep and the check loop read the rows, ask here, and write what is decided.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

from msgspec import Meta, Struct

from chain_kernel.clock import step_seconds
from chain_kernel.config import Config
from chain_kernel.errors import SettingError
from chain_kernel.text import counted
from outbox.destination import Seconds
from outbox.statuses import Change, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox.destination import Destination


PublishedPlace = tuple[str, str, int]
"""A consumer, a topic, a partition."""

CLAIMS_MAX: Final = 20
"""Consecutive claims without a written outcome. They are no tries: a process that is killed between
claim and send has sent nothing. But a message that ends its process each time would do so forever;
with the default times this many take two and a half hours."""


class ResendDecision(enum.Enum):
    """The sweep's decision on a delivery that is due."""

    SEND = "send"
    WAIT = "wait"
    """It is on the broker, and its consumer has not yet finished up to it: no try, not sent."""
    GIVE_UP = "give up"
    """Its tries are used up: abnormal."""


class DueDelivery(Struct, frozen=True, gc=False):
    """A delivery whose `next_send_at` has come."""

    message_id: UUID
    consumer: str
    destination: str
    status: int
    send_count: int
    """Tries of this round so far: sends whose outcome is known."""
    claim_count: int
    """Claims since then without a written outcome: its process ended, most likely before it had
    sent anything."""
    topic: str | None
    partition: int | None
    offset: int | None
    """None: not known to be on the broker, or the acknowledgement of the last send was lost."""
    sent_seconds: float | None
    """Seconds since the last acknowledged send."""
    size: int | None
    """Bytes of the payload; None if the message itself is missing."""


def judge(
    due: DueDelivery, rules: Destination, progress: Mapping[PublishedPlace, int]
) -> ResendDecision:
    """Return what to do with `due`.

    `progress` holds, by place, the smallest offset that the consumer has not finished: a record
    below it was read and is gone, one at or above it is merely queued.
    """
    if due.status == Status.CONFIRMED and _is_queued(due, rules, progress):
        return ResendDecision.WAIT
    is_left = due.send_count < rules.tries_max and due.claim_count < CLAIMS_MAX
    return ResendDecision.SEND if is_left else ResendDecision.GIVE_UP


def why_given_up(due: DueDelivery, rules: Destination) -> str:
    """Return the reason that is stored with a delivery that becomes abnormal."""
    if due.send_count >= rules.tries_max:
        return f"no end after {counted(due.send_count, 'try', 'tries')}"
    claims = counted(due.claim_count, "time")
    return f"claimed {claims} to be sent, by processes that ended before they had written more"


def _is_queued(
    due: DueDelivery, rules: Destination, progress: Mapping[PublishedPlace, int]
) -> bool:
    if not rules.resend_filter:
        return False
    if due.topic is None or due.partition is None or due.offset is None:
        return False
    if due.sent_seconds is None or due.sent_seconds >= rules.queue_seconds_max:
        return False
    # A consumer that has reported nothing has finished nothing.
    return due.offset >= progress.get((due.consumer, due.topic, due.partition), 0)


def wait_seconds(rules: Destination, before: int) -> float:
    """Return how long the next send may wait for its end, after so many claims before it."""
    return step_seconds(rules.resend_seconds, rules.resend_seconds_max, before)


def queue_wait_seconds(due: DueDelivery, rules: Destination) -> float:
    """Return after how many seconds to look again at a delivery that is queued.

    The longer it has waited, the longer the time: a backlog of many messages must not cost one
    write per message in every round.
    """
    waited = due.sent_seconds or 0.0
    left = rules.queue_seconds_max - waited
    return min(max(waited, rules.resend_seconds), rules.resend_seconds_max, max(left, 1.0))


class Answer(enum.Enum):
    """A sender's answer about the local transaction that a message belongs to."""

    DONE = "done"
    """It has committed."""
    NOT_DONE = "not_done"
    """It has not, and never will: the sender made sure of that before it answered."""
    UNKNOWN = "unknown"
    """It may still be running. The sender is asked again."""


class CheckRules(Config, frozen=True, kw_only=True):
    """The times at which a sender is asked."""

    first_seconds: Seconds = 30.0
    """Pause after the prepare: longer than local transactions take."""
    again_seconds: Seconds = 30.0
    """Pause after the first `unknown` answer. It doubles with each."""
    again_seconds_max: Seconds = 600.0
    """Upper bound of that time."""
    unanswered_seconds: Seconds = 30.0
    """Pause after a check that was not answered. Such checks are not counted: a sender that is
    down for an hour finds its messages as it left them."""
    answers_max: Annotated[int, Meta(ge=1, le=1_000)] = 16
    """So many `unknown` answers make the message abnormal. The last one, too, is followed by its
    full time, in which the sender may still decide; it is not asked again then."""

    def __post_init__(self) -> None:
        """Raise SettingError if two settings contradict each other."""
        super().__post_init__()
        if self.again_seconds_max < self.again_seconds:
            expected = f"at least again_seconds, {self.again_seconds}"
            raise SettingError("again_seconds_max", self.again_seconds_max, expected)


class CheckOutcome(Struct, frozen=True):
    """The next state of a prepared delivery after a check."""

    change: Change | None
    """None: it stays prepared, and its sender is asked again."""
    check_count: int
    """Answers so far, this one included."""
    again_seconds: float = 0.0
    """Pause until the next check, if it stays prepared."""


def may_ask(rules: CheckRules, check_count: int) -> bool:
    """Return whether a sender may be asked, after `check_count` answers, all of them `unknown`."""
    return check_count < rules.answers_max


def after_check(rules: CheckRules, check_count: int, answer: Answer | None) -> CheckOutcome:
    """Return what follows from `answer`, after `check_count` earlier answers.

    None: there was no answer, for any reason.
    """
    if answer is Answer.DONE:
        return CheckOutcome(Change.COMMITTED, check_count + 1)
    if answer is Answer.NOT_DONE:
        return CheckOutcome(Change.ROLLED_BACK, check_count + 1)
    if answer is None:
        return CheckOutcome(None, check_count, rules.unanswered_seconds)
    again = step_seconds(rules.again_seconds, rules.again_seconds_max, check_count)
    return CheckOutcome(None, check_count + 1, again)
