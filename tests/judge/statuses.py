"""Statuses of the outbox: each delivery moves along the table, and ends once."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from .rules import Model

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class Statuses(Model):
    """Deliveries by their names, as their rows change."""

    RULES: ClassVar[tuple[str, ...]] = (
        "G10 begins", "G10 table", "G10 decided", "G10 ends once", "G10 tries",
    )  # fmt: skip

    def __init__(self, without: str = "") -> None:
        super().__init__(without)
        self.standing: dict[str, Standing] = {}
        self.ended: set[str] = set()
        self.history: dict[str, list[Standing]] = {}

    def stored(self, name: str, status: int, is_decided: bool) -> None:
        is_new = (status, is_decided) in NEW and name not in self.standing
        self.rule("G10 begins", is_new, name, status, is_decided)
        self._stand(name, status, is_decided)

    def by_hand(self, name: str, status: int, is_decided: bool) -> None:
        """Take note of what a test has set."""
        self.history.pop(name, None)
        self._stand(name, status, is_decided)

    def moved(self, name: str, status: int, is_decided: bool) -> None:
        self._require_line(name, status)
        is_open = status == PREPARED or (
            status == ABNORMAL and not self.standing.get(name, (INIT, True))[1]
        )
        self.rule("G10 decided", is_decided is not is_open, name, status)
        self._stand(name, status, is_decided)

    def tried(self, name: str, tries: int, tries_max: int) -> None:
        self.rule("G10 tries", tries <= tries_max, name, tries, tries_max)

    def done(self, name: str, status: int) -> None:
        """Take note of an end; its row is written again where it moves to another partition."""
        is_again = name in self.ended
        is_same = not is_again or status == self.standing[name][0]
        self.rule("G10 ends once", is_same, name, status)
        if is_again:
            return
        self._require_line(name, status)
        self.ended.add(name)
        self._stand(name, status, is_decided=True)

    def promises(self) -> Iterator[tuple[str, bool]]:
        steps = [step for stood in self.history.values() for step in pairwise(stood)]
        yield "G10", all((before, after[0]) in TABLE for before, after in steps)

    def _require_line(self, name: str, status: int) -> None:
        before = self.standing.get(name)
        self.rule("G10 table", (before, status) in TABLE, name, before, status)

    def _stand(self, name: str, status: int, is_decided: bool) -> None:
        self.standing[name] = (status, is_decided)
        self.history.setdefault(name, []).append((status, is_decided))
