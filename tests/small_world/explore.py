"""Explores every state breadth first, many at a time.

A state is a row of numbers, one for the value of each part of the world. A step reads a few parts
and says what they may become. It is asked once for each combination of their values: its answers
are then those of all states that have these values. So the cores of the engine, which are pure,
decide millions of states in some thousands of calls.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tests.judge.rules import Diverged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.uint32]
    Hashes = NDArray[np.uint64]
    Places = NDArray[np.intp]
    Outcomes = Iterable[tuple[str, tuple[Any, ...]]]
    """How it is said, and what the parts become."""

CHUNK: Final = 500_000
"""States whose successors are in memory at once."""

THREADS: Final = 2


class Step(NamedTuple):
    """What may happen to the values of some parts."""

    take: Callable[..., Outcomes]
    parts: tuple[int, ...]


class Level(NamedTuple):
    """States, by their hashes, and which state of the level before leads to each."""

    hashes: Hashes
    rows: Rows
    parents: NDArray[np.int32]


class Explored(NamedTuple):
    """What was found. `rule` is the promise that was broken, `story` the shortest way there."""

    states: int
    steps: int
    """Those to the last state."""
    is_whole: bool
    seconds: float
    questions: int
    """How often a step was asked."""
    rule: str = ""
    story: Sequence[str] = ()


class Explorer:
    """Explores what `first` leads to; the `alike` parts may be exchanged."""

    def __init__(
        self, first: tuple[Any, ...], steps: Iterable[Step], alike: tuple[int, ...] = ()
    ) -> None:
        self._steps = list(steps)
        self._alike = list(alike)
        self._numbers: list[dict[Any, int]] = [{} for _ in first]
        self._values: list[list[Any]] = [[] for _ in first]
        for part in alike:
            self._numbers[part] = self._numbers[alike[0]]
            self._values[part] = self._values[alike[0]]
        self._answers: dict[tuple[Any, ...], Rows] = {}
        self._first = self._rows([first], range(len(first)))
        self._levels: list[Level] = []

    def explore(self, seconds: float = np.inf, steps: int = 1_000) -> Explored:
        """Explore until all is explored, a promise is broken, or a bound is reached."""
        began, states, rule, story = time.monotonic(), 0, "", list[str]()
        level = Level(mixed(self._first), self._first, np.zeros(1, np.int32))
        seen = level.hashes
        with ThreadPoolExecutor(THREADS) as threads:
            while len(level.rows) and len(self._levels) <= steps:
                states += len(level.rows)
                packed = level.rows.astype(np.min_scalar_type(level.rows.max()))
                self._levels.append(level._replace(hashes=seen[:0], rows=packed))
                if time.monotonic() - began > seconds:
                    break
                try:
                    level = self._next_level(level.rows, seen, threads)
                except _Found as found:
                    rule, story = found.rule, [*self._story(found.at), str(found)]
                    break
                seen = np.sort(np.concatenate((seen, level.hashes)), kind="stable")
        took = time.monotonic() - began
        last, is_whole = len(self._levels) - 1, not len(level.rows)
        return Explored(states, last, is_whole, took, len(self._answers), rule, story)

    def _next_level(self, rows: Rows, seen: Hashes, threads: ThreadPoolExecutor) -> Level:
        """Return the states that follow `rows` and were not seen. Raises _Found."""
        level = Level(seen[:0], rows[:0], np.zeros(0, np.int32))
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            # Numbers are crunched side by side; questions are asked one after the other, so that
            # each run is the same.
            parts = [part[:, step.parts] for step in self._steps]
            combined = list(threads.map(_combined, parts))
            answers = [
                self._answers_to(step, part, firsts, start)
                for step, (firsts, _) in zip(self._steps, combined, strict=True)
            ]
            grow = partial(self._grown, part, (seen, level.hashes))
            which = [each for _, each in combined]
            grown = _merged(list(threads.map(grow, self._steps, answers, which)))
            parents = grown.parents + np.int32(start)
            level = _merged([level, grown._replace(parents=parents)])
        return level

    def _answers_to(self, step: Step, rows: Rows, firsts: Places, start: int) -> list[Rows]:
        found = []
        for at in firsts.tolist():
            asked = tuple(rows[at, step.parts].tolist())
            answer = self._answers.get((step.take, *asked))
            if answer is None:
                try:
                    after = [values for _, values in self._outcomes(step, asked)]
                except Diverged as error:
                    raise _Found(error, start + at) from error
                answer = self._answers[step.take, *asked] = self._rows(after, step.parts)
            found.append(answer)
        return found

    def _outcomes(self, step: Step, asked: Iterable[int]) -> Outcomes:
        return step.take(
            *(self._values[part][at] for part, at in zip(step.parts, asked, strict=True))
        )

    def _rows(self, states: Iterable[tuple[Any, ...]], parts: Sequence[int]) -> Rows:
        """Return the numbers of the values of `parts`, without repeats."""
        found = dict.fromkeys(
            tuple(self._number(part, value) for part, value in zip(parts, values, strict=True))
            for values in states
        )
        return np.array(list(found), np.uint32).reshape(-1, len(parts))

    def _number(self, part: int, value: Any) -> int:
        numbers, values = self._numbers[part], self._values[part]
        number = numbers.setdefault(value, len(values))
        if number == len(values):
            values.append(value)
        return number

    def _grown(
        self, rows: Rows, known: tuple[Hashes, ...], step: Step, answers: list[Rows], which: Places
    ) -> Level:
        """Return the new ones of the states that a step makes of `rows`, each of which has one of
        `answers`."""
        counts = np.array(list(map(len, answers)))
        begins = np.cumsum(counts) - counts
        by_row = counts[which]
        parents = np.repeat(np.arange(len(rows), dtype=np.int32), by_row)
        within = np.arange(len(parents)) - np.repeat(np.cumsum(by_row) - by_row, by_row)
        after = rows[parents]
        after[:, step.parts] = np.concatenate(answers)[begins[which[parents]] + within]
        self._sort_alike(after)
        hashes, at = np.unique(mixed(after), return_index=True)
        for each in known:
            is_new = ~_are_in(each, hashes)
            hashes, at = hashes[is_new], at[is_new]
        return Level(hashes, after[at], parents[at])

    def _sort_alike(self, rows: Rows) -> None:
        rows[:, self._alike] = np.sort(rows[:, self._alike], axis=1)

    def _story(self, at: int) -> list[str]:
        """Return what happens on the way to a state of the last level."""
        way: list[Rows] = []
        for level in reversed(self._levels):
            way.append(level.rows[at : at + 1].astype(np.uint32))
            at = int(level.parents[at])
        way.reverse()
        return [self._said(before, after) for before, after in pairwise(way)]

    def _said(self, before: Rows, after: Rows) -> str:
        for step in self._steps:
            for said, values in self._outcomes(step, before[0, step.parts].tolist()):
                row = before.copy()
                row[0, step.parts] = self._rows([values], step.parts)[0]
                self._sort_alike(row)
                if (row == after).all():
                    return said
        raise AssertionError("no step leads there")


class _Found(Exception):
    def __init__(self, error: Diverged, at: int) -> None:
        super().__init__(str(error))
        self.rule, self.at = error.rule, at


def mixed(rows: Rows) -> Hashes:
    """Return a hash of each row.

    The chance that any two of ten million states share one is below 1 in 300,000.
    """
    found = np.full(len(rows), 0x9E3779B97F4A7C15, np.uint64)
    for column in rows.T:
        found ^= column
        found *= np.uint64(0xFF51AFD7ED558CCD)
        found ^= found >> np.uint64(32)
        found *= np.uint64(0xC4CEB9FE1A85EC53)
        found ^= found >> np.uint64(29)
    return found


def _combined(part: Rows) -> tuple[Places, Places]:
    """Return where each combination is first, and which one each row has."""
    _, firsts, inverse = np.unique(mixed(part), return_index=True, return_inverse=True)
    return firsts, inverse


def _are_in(known: Hashes, hashes: Hashes) -> NDArray[np.bool_]:
    at = np.searchsorted(known, hashes)
    return known[at % len(known)] == hashes if len(known) else np.zeros(len(hashes), bool)


def _merged(levels: list[Level]) -> Level:
    hashes, rows, parents = map(np.concatenate, zip(*levels, strict=True))
    hashes, at = np.unique(hashes, return_index=True)
    return Level(hashes, rows[at], parents[at])
