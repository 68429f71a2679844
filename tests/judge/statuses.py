"""Statuses of the outbox: each delivery moves along the table, and ends once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from .rules import Model

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

INIT, CONFIRMED, CONSUMED, ABNORMAL, PREPARED, CANCELLED, ABANDONED = range(7)
Standing = tuple[int, bool]
"""A status, and whether the sender has decided."""
NEW = frozenset({(INIT, True), (PREPARED, False)})

TABLE = frozenset({
    ((PREPARED, False), INIT), ((PREPARED, False), CANCELLED), ((PREPARED, False), ABNORMAL),
    ((ABNORMAL, False), INIT), ((ABNORMAL, False), CANCELLED), ((ABNORMAL, False), PREPARED),
    ((ABNORMAL, False), ABANDONED),
    ((INIT, True), CONFIRMED), ((INIT, True), CONSUMED), ((INIT, True), ABNORMAL),
    ((INIT, True), ABANDONED),
    ((CONFIRMED, True), CONFIRMED), ((CONFIRMED, True), CONSUMED), ((CONFIRMED, True), ABNORMAL),
    ((CONFIRMED, True), ABANDONED),
    ((ABNORMAL, True), CONSUMED), ((ABNORMAL, True), INIT), ((ABNORMAL, True), ABANDONED),
})  # fmt: skip
"""From where a delivery may become what."""


BY_HAND = frozenset({
    *(line for line in TABLE if line[1] == ABANDONED),
    ((ABNORMAL, False), PREPARED), ((ABNORMAL, True), INIT),
})  # fmt: skip
"""What people alone may do of those, and it is on record."""


class Statuses(Model):
    """Deliveries by their names, the ids of their messages first, as their rows change."""

    RULES: ClassVar[tuple[str, ...]] = (
        "G10 begins", "G10 table", "G10 decided", "G10 ends once", "G10 tries",
        "G10 hand on record", "G10 end stays", "G16 waits or has ended",
    )  # fmt: skip

    def __init__(self, without: str = "") -> None:
        super().__init__(without)
        self.standing: dict[str, Standing] = {}
        self.ended: set[str] = set()
        self.history: dict[str, list[Standing]] = {}
        self._acts: Counter[tuple[str, int]] = Counter()

    def stored(self, name: str, status: int, is_decided: bool) -> None:
        is_new = (status, is_decided) in NEW and name not in self.standing
        self.rule("G10 begins", is_new, name, status, is_decided)
        self._stand(name, status, is_decided)

    def by_hand(self, what: str, name: str, status: int, is_decided: bool | None) -> None:
        """Take note of what a test has set, or has taken away."""
        self.history.pop(name, None)
        if what == "done":
            self.ended.add(name)
            self._stand(name, status, is_decided=True)
        elif what != "left":
            self._stand(name, status, bool(is_decided))
        elif name not in self.ended:
            self.standing.pop(name, None)

    def acted(self, name: str, status: int) -> None:
        """Take note of the record of what somebody is about to do by hand."""
        self._acts[name, status] += 1

    def moved(self, name: str, status: int, is_decided: bool) -> None:
        self._require_line(name, status)
        was_decided = self.standing.get(name, (INIT, True))[1]
        is_right = is_decided is (status != PREPARED and (status != ABNORMAL or was_decided))
        self.rule("G10 decided", is_right, name, status)
        self._stand(name, status, is_decided)

    def tried(self, name: str, tries: int, tries_max: int) -> None:
        self.rule("G10 tries", tries <= tries_max, name, tries, tries_max)

    def done(self, name: str, status: int) -> None:
        """Take note of an end; its row is written again where it moves to another partition."""
        is_again = name in self.ended
        stays = not is_again or status == self.standing[name][0]
        self.rule("G10 ends once", stays, name, status)
        if is_again:
            return
        self._require_line(name, status)
        self.ended.add(name)
        self._stand(name, status, is_decided=True)

    def over(
        self, waiting: Mapping[str, Standing], ended: Mapping[str, int], messages: Collection[str]
    ) -> None:
        """Take note of what is there in the end; with its message an ended delivery may go, too."""
        for name, standing in self.standing.items():
            if name not in self.ended:
                self.rule("G16 waits or has ended", waiting.get(name) == standing, name, standing)
                continue
            is_gone = name not in ended and name.partition(" ")[0] not in messages
            stays = (is_gone or ended.get(name) == standing[0]) and name not in waiting
            self.rule("G10 end stays", stays, name, standing)

    def promises(self) -> Iterator[tuple[str, bool]]:
        steps = [step for stood in self.history.values() for step in pairwise(stood)]
        yield "G10", all((before, after[0]) in TABLE for before, after in steps)

    def _require_line(self, name: str, status: int) -> None:
        before = self.standing.get(name)
        self.rule("G10 table", (before, status) in TABLE, name, before, status)
        if (before, status) in BY_HAND:
            self.rule("G10 hand on record", self._acts[name, status] > 0, name, before, status)
            self._acts[name, status] -= 1

    def _stand(self, name: str, status: int, is_decided: bool) -> None:
        self.standing[name] = (status, is_decided)
        self.history.setdefault(name, []).append((status, is_decided))
