"""How awkward the stand-ins are, and which faults have happened."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from random import Random

CUT_OFF_MAX: Final = 100
"""Messages that are each handled once in vain: enough for any test of a handler, and starting a
consumer for each of them takes a few milliseconds."""


class Awkwardness(Struct, kw_only=True):
    """Shares of what goes wrong, each drawn independently. They may be changed at any time.

    None of them goes beyond what honest parts do: what is committed stays so, and what the broker
    has acknowledged is in its log.
    """

    cut_off: int = CUT_OFF_MAX
    """So many messages are handled once in vain: the process is killed after the handler has
    returned, and before the commit."""
    at_each_await: bool = True
    """Whether the process is killed at the first await of the handler, then at the second, and so
    on up to its end, and once after the commit; each in a call of its own."""
    killed: float = 0.1
    """Other calls of the handler in which the process is killed somewhere."""
    commit_answer_lost: float = 0.05
    """Commits of the consumer that take place, and whose answer is lost with the connection."""
    acknowledgement_lost: float = 0.1
    """Records that are stored and not acknowledged: the relay resends them."""
    confirm_unanswered: float = 0.1
    """Confirm records that are stored and not acknowledged: the consumer resends them."""
    broker_away: float = 0.05
    """Questions to the broker that it neither answers nor obeys."""
    held_back: float = 0.3
    """Looks at the broker that do not see a partition: others overtake it."""
    moved: float = 0.05
    """Looks after which a partition has been away for a moment: what is unfinished comes again."""
    check_unanswered: float = 0.2
    """Questions of check-back that are not answered, and calls of a message client whose answer is
    lost."""

    def calm(self) -> None:
        """Turn off all faults from now on."""
        self.cut_off, self.at_each_await = 0, False
        self.killed = self.commit_answer_lost = self.acknowledgement_lost = 0.0
        self.confirm_unanswered = self.broker_away = self.held_back = self.moved = 0.0
        self.check_unanswered = 0.0


class Faults:
    """Draws faults by their shares, and counts them."""

    def __init__(self, random: Random) -> None:
        self.awkward = Awkwardness()
        self.counts: Counter[str] = Counter()
        self.random = random

    def happens(self, name: str) -> bool:
        """Draw one fault by the share of its name."""
        share: float = getattr(self.awkward, name)
        happens = share > 0.0 and self.random.random() < share
        if happens:
            self.counts[name] += 1
        return happens
