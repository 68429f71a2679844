"""Every story of a few steps that a model lets happen: does it keep what it promises?

A variant without one of its rules must break a promise: else the rule promises nothing.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from .rules import Diverged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .rules import Model

Seen = tuple[Any, ...]
"""What was seen, and its values."""


def first_broken(
    model: Model, steps: Callable[[Any], Iterable[Seen]], depth: int
) -> tuple[str, list[Seen]] | None:
    """Return the guarantee that the shortest story breaks, and that story; None where none does.

    `steps` are those that may be tried on a model: what it does not let happen is no story.
    """
    frontier: list[tuple[Any, list[Seen]]] = [(model, [])]
    for _ in range(depth):
        grown = []
        for before, story in frontier:
            for what, *values in steps(before):
                after = deepcopy(before)
                try:
                    getattr(after, what)(*values)
                except Diverged:
                    continue
                seen_so_far = [*story, (what, *values)]
                for guarantee, holds in after.promises():
                    if not holds:
                        return guarantee, seen_so_far
                grown.append((after, seen_so_far))
        frontier = grown
    return None
