"""Check-back: when the sender of a prepared message is asked, and what follows from its answer.

Pure. `outbox.sender.check_loop` reads what is due, asks, and writes what is decided here.
"""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta, Struct

from orderchain.backoff import step_seconds
from orderchain.config import Config
from orderchain.errors import SettingError
from outbox.statuses import Change

Seconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]


class Answer(enum.Enum):
    """A sender's answer about the local transaction that a message belongs to."""

    DONE = "done"
    """It has committed."""
    NOT_DONE = "not_done"
    """It has not, and never will: the sender made sure of that before it answered."""
    UNKNOWN = "unknown"
    """It may still be running. The sender is asked again."""


class CheckRules(Config, frozen=True, kw_only=True):
    """How often a sender is asked."""

    first_seconds: Seconds = 30.0
    """How long after the prepare: longer than local transactions take."""
    again_seconds: Seconds = 30.0
    """How long after the first `unknown` answer. It doubles with each."""
    again_seconds_max: Seconds = 600.0
    """Upper bound of that time."""
    unanswered_seconds: Seconds = 30.0
    """How long after a check that was not answered. Such checks are not counted: a sender that is
    down for an hour finds its messages as it left them."""
    answers_max: Annotated[int, Meta(ge=1, le=1_000)] = 16
    """How many `unknown` answers make the message abnormal. The last one, too, is followed by its
    full time, in which the sender may still decide; it is not asked again then."""

    def __post_init__(self) -> None:
        """Raise SettingError if two settings contradict each other."""
        super().__post_init__()
        if self.again_seconds_max < self.again_seconds:
            expected = f"at least again_seconds, {self.again_seconds}"
            raise SettingError("again_seconds_max", self.again_seconds_max, expected)


class CheckOutcome(Struct, frozen=True):
    """What becomes of a prepared delivery after a check."""

    change: Change | None
    """None: it stays prepared, and its sender is asked again."""
    check_count: int
    """Answers so far, this one included."""
    again_seconds: float = 0.0
    """How long until the next check, if it stays prepared."""


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
