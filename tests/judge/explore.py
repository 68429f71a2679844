"""Every story of a few steps that a model lets happen: does it keep what it promises?

A variant without one of its rules must break a promise: else the rule promises nothing.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from .rules import Diverged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .rules import Model

Seen = tuple[Any, ...]
"""What was seen, and its values."""


def first_broken(
    model: Model, steps: Callable[[Any], Iterable[Seen]], depth: int
) -> tuple[str, list[Seen]] | None:
    """Return the guarantee that the shortest story breaks, and that story; None where none does.

    `steps` are those that may be tried on a model: what it does not let happen is no story.
    """
    for _, story, after in _tried(model, steps, depth):
        for guarantee, holds in () if isinstance(after, Diverged) else after.promises():
            if not holds:
                return guarantee, story
    return None


def first_refused(
    model: Model,
    rule: str,
    steps: Callable[[Any], Iterable[Seen]],
    wrongs: Callable[[Any], Iterable[Seen]],
    depth: int,
) -> list[Seen] | None:
    """Return the shortest story whose end `rule` refuses, and no other rule; None without one.

    Its end may be one of `wrongs`, too.
    """

    def refused(before: Any, seen: Seen) -> bool:
        variant = deepcopy(before)
        variant.without = rule
        error, let_pass = _after(before, seen), _after(variant, seen)
        is_refused = isinstance(error, Diverged) and error.rule == rule
        return is_refused and not isinstance(let_pass, Diverged)

    for before, story, _ in _tried(model, lambda at: (*steps(at), *wrongs(at)), depth):
        if refused(before, story[-1]):
            return story
    return None


def _tried(
    model: Model, steps: Callable[[Any], Iterable[Seen]], depth: int
) -> Iterator[tuple[Model, list[Seen], Model | Diverged]]:
    """Yield each story, the shortest ones first, with the model before its end and after it."""
    frontier: list[tuple[Model, list[Seen]]] = [(model, [])]
    for _ in range(depth):
        grown = []
        for before, story in frontier:
            for seen in steps(before):
                after = _after(before, seen)
                yield before, [*story, seen], after
                if not isinstance(after, Diverged):
                    grown.append((after, [*story, seen]))
        frontier = grown


def _after(before: Model, seen: Seen) -> Model | Diverged:
    """Return the model after what was seen, or what it says to it."""
    what, *values = seen
    after = deepcopy(before)
    try:
        getattr(after, what)(*values)
    except Diverged as error:
        return error
    return after
