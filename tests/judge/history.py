"""Calls by their times, on one clock: are the answers those of an object that takes one at a time?

The object is the chain's head. An order's place in its history is the order's id, and that of a
look the head that it showed, so no search is needed: the answers are linearizable if no call ended
before another one began that has a lower place.
"""

from __future__ import annotations

from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, ClassVar

from .rules import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Call = tuple[float, float, float, str]
"""Its place, when it began and ended, and whose it is."""


class History(Model):
    """Orders by their keys, and looks. An order that is submitted again is one call."""

    RULES: ClassVar[tuple[str, ...]] = ("G4 linearizable",)

    def __init__(self, clock: Callable[[], float], without: str = "") -> None:
        super().__init__(without)
        self.clock = clock
        self._began: dict[str, float] = {}
        self._ended: dict[str, tuple[int, float]] = {}
        self._looks: list[Call] = []
        self._latest = (-inf, "")
        """When the last of the calls began that were forgotten, and whose it is."""

    def asked(self, keys: Sequence[str]) -> None:
        now = self.clock()
        for key in keys:
            self._began.setdefault(key, now)

    def answered(self, key: str, payload: bytes, row_id: int, pid: int) -> None:
        del payload, pid
        self._ended.setdefault(key, (row_id, self.clock()))

    def looked(self, head: int, began: float) -> None:
        """Take note of a look, or of a take-over, that showed this head and is over now."""
        self._looks.append((head + 0.5, began, self.clock(), f"look at {head}"))

    def calls(self) -> list[Call]:
        """Return the calls that had an answer."""
        orders = [
            (float(row_id), self._began.get(key, -inf), ended, key)
            for key, (row_id, ended) in self._ended.items()
        ]
        return sorted([*orders, *self._looks])

    def over(self) -> None:
        """Judge all calls."""
        latest, by = self._latest
        for _, began, ended, what in self.calls():
            self.rule("G4 linearizable", ended >= latest, what, "ended before the earlier", by)
            if began > latest:
                latest, by = began, what

    def forget(self, until_id: int) -> None:
        gone = [call for call in self.calls() if call[0] < until_id + 1]
        began = [(call[1], call[3]) for call in gone]
        self._latest = max([self._latest, *began])
        self._looks = [look for look in self._looks if look[0] > until_id + 1]
        for *_, key in gone:
            self._ended.pop(key, None)
            self._began.pop(key, None)

    def promises(self) -> Iterator[tuple[str, bool]]:
        yield "G4", all(after[2] >= before[1] for before, after in combinations(self.calls(), 2))
