"""What the saved lines say: medians with their spread, and ratios within one round."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from msgspec import Struct

from benchmarks.percentiles import merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from benchmarks.question import Figures, Line


PROCESSES = ("producer", "receiver", "postgres", "kafka")
"""Whose CPU seconds are counted."""


class Spread(Struct, frozen=True):
    """A median with the lowest and the highest, of `count` values."""

    median: float
    low: float
    high: float
    count: int


def as_spread(found: Mapping[str, float]) -> Spread:
    """Return the spread that a program of its own has saved."""
    return Spread(found["median"], found["min"], found["max"], 2)


class Lines:
    """The saved lines of one question."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.all = list(lines)
        self._figures: dict[str, dict[int, Figures]] = {}
        for line in self.all:
            if line.figures is not None:
                self._figures.setdefault(line.arm, {})[line.repeat] = line.figures

    @property
    def arms(self) -> list[str]:
        """Names of all arms that have figures, in the order in which they were run."""
        return list(self._figures)

    @property
    def skipped(self) -> dict[str, str]:
        """Arms that cannot run on the machine, with the reason."""
        return {line.arm: line.skipped for line in self.all if line.skipped is not None}

    @property
    def failed(self) -> list[Line]:
        """Runs without a figure."""
        return [line for line in self.all if line.failure is not None]

    def spread(self, arm: str, figure: str | Callable[[Figures], float]) -> Spread | None:
        """Return the spread of a figure over the repeats of an arm; None without any."""
        return spread_of(_value(found, figure) for found in self._figures.get(arm, {}).values())

    def ratio(
        self, arm: str, base: str, figure: str, base_figure: str | None = None
    ) -> Spread | None:
        """Return the spread of the ratios of two arms, each within its own round."""
        tops, bases = self._figures.get(arm, {}), self._figures.get(base, {})
        return spread_of(
            _value(tops[repeat], figure) / _value(bases[repeat], base_figure or figure)
            for repeat in sorted(tops.keys() & bases.keys())
        )

    def percentiles(self, arm: str, histogram: str = "histogram") -> dict[str, float] | None:
        """Return the percentiles of an arm, from the histograms of all its repeats together."""
        all_figures = self._figures.get(arm, {}).values()
        found = [figures[histogram] for figures in all_figures if histogram in figures]
        return merged(found) if found else None

    def percentile_spread(
        self, arm: str, percentile: str, histogram: str = "histogram"
    ) -> Spread | None:
        """Return how a percentile moves from repeat to repeat: its spread, never its value."""
        return spread_of(self.percentile_by_repeat(arm, percentile, histogram).values())

    def percentile_by_repeat(
        self, arm: str, percentile: str, histogram: str = "histogram"
    ) -> dict[int, float]:
        """Return a percentile of each repeat of an arm, from its histogram alone."""
        return {
            repeat: merged([figures[histogram]])[percentile]
            for repeat, figures in self._figures.get(arm, {}).items()
        }


def spread_of(values: Iterable[float]) -> Spread | None:
    """Return the spread of some values, None when there are none."""
    found = [value for value in values]
    if not found:
        return None
    return Spread(statistics.median(found), min(found), max(found), len(found))


def _value(figures: Figures, figure: str | Callable[[Figures], float]) -> float:
    return float(figures[figure] if isinstance(figure, str) else figure(figures))


def own_share(figures: Figures) -> float:
    """Return the share of sequencer and receiver in all CPU seconds."""
    return _cpu(figures, ("producer", "receiver")) / cpu_seconds(figures)


def cpu_seconds(figures: Figures) -> float:
    """Return the CPU seconds of all four processes."""
    return _cpu(figures, PROCESSES)


def per_million(process: str) -> Callable[[Figures], float]:
    """Return the function that returns the CPU seconds of a process per million orders."""
    return lambda figures: figures[f"{process}_cpu_seconds"] / figures["orders"] * 1e6


def all_per_million(figures: Figures) -> float:
    """Return the CPU seconds of all four processes per million orders."""
    return float(cpu_seconds(figures) / figures["orders"] * 1e6)


def _cpu(figures: Figures, processes: Sequence[str]) -> float:
    return float(sum(figures[f"{process}_cpu_seconds"] for process in processes))
