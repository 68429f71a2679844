"""What the models have in common: rules that must hold, and how often each was asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator


SHOWN_MAX = 500
"""Characters of what was seen."""


class Diverged(AssertionError):
    """What was seen is nothing that the model does: `rule` begins with its guarantee."""

    def __init__(self, rule: str, *shown: object) -> None:
        super().__init__(f"{rule}: {' '.join(map(str, shown))}"[:SHOWN_MAX])
        self.rule = rule


class Model(ABC):
    """Steps through observations; a variant is `without` one of its rules."""

    RULES: ClassVar[tuple[str, ...]]

    def __init__(self, without: str = "") -> None:
        self.without = without
        self.decided: Counter[str] = Counter()

    @abstractmethod
    def promises(self) -> Iterator[tuple[str, bool]]:
        """Yield each guarantee, said of all that was seen so far, whatever the rules are."""

    def rule(self, name: str, holds: object, *shown: object) -> None:
        """Raise Diverged unless it `holds`."""
        self.decided[name] += 1
        if not holds and name != self.without:
            raise Diverged(name, *shown)


def uncovered(*models: Model) -> list[str]:
    """Return the rules that nothing of what was seen has asked: a log without them proves little.

    One of several models of a class is enough.
    """
    asked: Counter[str] = Counter()
    for model in models:
        asked.update(model.decided)
    return sorted({rule for model in models for rule in model.RULES if not asked[rule]})
