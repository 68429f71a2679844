"""Messages of the outbox: what was stored takes effect once, in the order of its key."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from .rules import Model

if TYPE_CHECKING:
    from collections.abc import Iterator

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class Messages(Model):
    """Messages by their ids, each of a key or of none."""

    RULES: ClassVar[tuple[str, ...]] = (
        "G6 sent and not stored", "G6 effect of what was not sent", "G6 effect twice",
        "G6 consumed before its effect", "G6 overtaken in its key", "G6 too old for the inbox",
        "G6 cancelled and decided for",
        "G10 acknowledged, not there",
    )  # fmt: skip

    def __init__(
        self,
        without: str = "",
        *,
        repeats: bool = False,
        is_ordered: bool = True,
        senders: int = 1,
    ) -> None:
        """`repeats`: the effect may be repeated, so its consumers keep no inbox.

        `is_ordered`: the broker keeps what it has acknowledged, and so its order. `senders` of one
        topic: consumers forget by the word of one, though another has more.
        """
        super().__init__(without)
        self.repeats, self.is_ordered, self.senders = repeats, is_ordered, senders
        self.stored: set[str] = set()
        """Those that may be sent."""
        self.against: set[str] = set()
        self.log: dict[Place, str] = {}
        self.sent: set[str] = set()
        self.first: dict[tuple[str, int, str | None], list[str]] = {}
        """By partition and key, messages in the order in which they were first there."""
        self.effects: Counter[tuple[str, str]] = Counter()
        """By consumer and message."""
        self.ended: set[tuple[str, str]] = set()
        """Given up by a consumer: others of the key go on."""
        self.consumed: set[tuple[str, str]] = set()

    def to_be_sent(self, message: str) -> None:
        self.rule("G6 cancelled and decided for", message not in self.against, message)
        self.stored.add(message)

    def record(self, place: Place, message: str, key: str | None) -> None:
        self.rule("G6 sent and not stored", message in self.stored, message, place)
        self.log[place] = message
        self.sent.add(message)
        of_key = self.first.setdefault((*place[:2], key), [])
        if message not in of_key:
            of_key.append(message)

    def effect(self, consumer: str, message: str) -> None:
        self.effects[consumer, message] += 1
        self.rule("G6 effect of what was not sent", message in self.sent, message)
        if self.repeats:
            return
        self.rule("G6 effect twice", self.effects[consumer, message] == 1, consumer, message)
        for (*_, key), messages in self.first.items():
            if self.is_ordered and key is not None and message in messages:
                before = messages[: messages.index(message)]
                left = [each for each in before if not self.is_over(consumer, each)]
                self.rule("G6 overtaken in its key", not left, consumer, message, left)

    def is_over(self, consumer: str, message: str) -> bool:
        return (consumer, message) in self.ended or self.effects[consumer, message] > 0

    def given_up(self, consumer: str, message: str, *, is_too_old: bool) -> None:
        self.rule("G6 too old for the inbox", self.senders > 1 or not is_too_old, message)
        self.ended.add((consumer, message))

    def done(self, consumer: str, message: str) -> None:
        is_applied = self.effects[consumer, message] > 0
        self.rule("G6 consumed before its effect", is_applied, consumer, message)
        self.consumed.add((consumer, message))

    def cancelled(self, message: str) -> None:
        self.rule("G6 cancelled and decided for", message not in self.stored, message)
        self.against.add(message)

    def acknowledged(self, place: Place, message: str) -> None:
        self.rule("G10 acknowledged, not there", self.log.get(place) == message, place, message)

    def promises(self) -> Iterator[tuple[str, bool]]:
        once = self.repeats or all(times == 1 for times in self.effects.values())
        yield "G6", once and all(self.effects[each] for each in self.consumed)
