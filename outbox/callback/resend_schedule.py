"""What the callback service does after it has asked a sender to send again. Pure."""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta, Struct

from orderchain.clock import step_seconds
from orderchain.config import Config

_Seconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]


class Reply(enum.Enum):
    """What a sender says of a delivery that it was asked to send again."""

    SENT = "sent"
    """It was sent again, and that counted as a try."""
    ENDED = "ended"
    """It is finished, abnormal, or not known: there is nothing to send."""


class AskRules(Config, frozen=True, kw_only=True):
    """How often a sender is asked."""

    again_seconds: _Seconds = 300.0
    """How long a message that was resent may stay unconfirmed before the next question. It doubles
    with each."""
    again_seconds_max: _Seconds = 3_600.0
    """Upper bound of that time."""
    unanswered_seconds: _Seconds = 10.0
    """How long after a question, or a return of confirms, that was not answered."""


class Next(Struct, frozen=True):
    """What becomes of a delivery after a question."""

    is_ended: bool
    ask_count: int
    """Questions that were answered so far."""
    again_seconds: float = 0.0


def after_ask(rules: AskRules, ask_count: int, reply: Reply | None) -> Next:
    """Return what follows from `reply`, after `ask_count` earlier answers; None: no answer.

    There is no bound here: the sender counts its tries, and ends the delivery when they are used
    up.
    """
    if reply is None:
        return Next(False, ask_count, rules.unanswered_seconds)
    if reply is Reply.ENDED:
        return Next(True, ask_count + 1)
    again = step_seconds(rules.again_seconds, rules.again_seconds_max, ask_count)
    return Next(False, ask_count + 1, again)
