"""The statistics of all figures: medians with their spread, ratios within one round; cells.

Percentiles come from merged histograms: never from averages, and never averaged themselves.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
from hdrh.histogram import HdrHistogram
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from benchmarks.load import Figures, Line

PROCESSES = ("producer", "receiver", "postgres", "kafka")
"""Processes whose CPU seconds are counted."""

RATE = "delivered_per_second"
"""The figure of the rate end to end."""

HIGHEST_US = 600_000_000
"""Ten minutes: an order that waited longer counts as that."""
_LOWEST_US = 1
_DIGITS = 3
_SHOWN = (50.0, 90.0, 99.0, 99.9)

# -- histograms ------------------------------------------------------------------------------------


def histogram_of(latencies_ns: Iterable[int] | np.ndarray[Any, Any]) -> str:
    """Return the histogram of latencies, encoded as text. What is below 1 us counts as that."""
    values = np.asarray(
        list(latencies_ns) if not isinstance(latencies_ns, np.ndarray) else latencies_ns
    )
    microseconds, counts = np.unique(
        np.clip(values // 1_000, _LOWEST_US, HIGHEST_US), return_counts=True
    )
    histogram = HdrHistogram(_LOWEST_US, HIGHEST_US, _DIGITS)
    for value, count in zip(microseconds.tolist(), counts.tolist(), strict=True):
        histogram.record_value(value, count)
    encoded: bytes = histogram.encode()
    return encoded.decode("ascii")


def merged(histograms: Sequence[str]) -> dict[str, float]:
    """Return percentiles in milliseconds over all of `histograms` together, and their count."""
    total = HdrHistogram(_LOWEST_US, HIGHEST_US, _DIGITS)
    for text in histograms:
        total.decode_and_add(text.encode("ascii"))
    found = {f"p{share:g}": total.get_value_at_percentile(share) / 1e3 for share in _SHOWN}
    return found | {"max": total.get_max_value() / 1e3, "count": float(total.get_total_count())}


# -- saved lines -----------------------------------------------------------------------------------


class Spread(Struct, frozen=True):
    """A median with the lowest and the highest, of `count` values."""

    median: float
    low: float
    high: float
    count: int


def spread_of(values: Iterable[float]) -> Spread | None:
    """Return the spread of some values, None when there are none."""
    found = list(values)
    if not found:
        return None
    return Spread(statistics.median(found), min(found), max(found), len(found))


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
    def failed(self) -> list[Line]:
        """Runs without a figure."""
        return [line for line in self.all if line.failure is not None]

    def spread(self, arm: str, figure: str | Callable[[Figures], float]) -> Spread | None:
        """Return the spread of a figure over the repeats of an arm; None without any."""
        return spread_of(
            _value(found, figure)
            for found in self._figures.get(arm, {}).values()
            if callable(figure) or figure in found
        )

    def ratio(self, arm: str, base: str, figure: str) -> Spread | None:
        """Return the spread of the ratios of two arms, each within its own round."""
        tops, bases = self._figures.get(arm, {}), self._figures.get(base, {})
        return spread_of(
            _value(tops[repeat], figure) / _value(bases[repeat], figure)
            for repeat in sorted(tops.keys() & bases.keys())
        )

    def percentiles(self, arm: str | None, histogram: str = "histogram") -> dict[str, float] | None:
        """Return the percentiles of an arm, from the histograms of all its repeats together.

        None: of all arms.
        """
        arms = self._figures if arm is None else {arm: self._figures.get(arm, {})}
        all_figures = [figures for repeats in arms.values() for figures in repeats.values()]
        found = [figures[histogram] for figures in all_figures if histogram in figures]
        return merged(found) if found else None

    def percentile_spread(self, arm: str, percentile: str) -> Spread | None:
        """Return how a percentile moves from repeat to repeat: its spread, never its value."""
        return spread_of(
            merged([figures["histogram"]])[percentile]
            for figures in self._figures.get(arm, {}).values()
        )


def _value(figures: Figures, figure: str | Callable[[Figures], float]) -> float:
    return float(figures[figure] if isinstance(figure, str) else figure(figures))


def own_share(figures: Figures) -> float:
    """Return the share of sequencer and receiver in all CPU seconds."""
    return _cpu(figures, PROCESSES[:2]) / _cpu(figures, PROCESSES)


def per_million(*processes: str) -> Callable[[Figures], float]:
    """Return the function that returns the CPU seconds of processes per million orders."""
    return lambda figures: _cpu(figures, processes) / figures["orders"] * 1e6


def _cpu(figures: Figures, processes: Sequence[str]) -> float:
    return float(sum(figures[f"{process}_cpu_seconds"] for process in processes))


# -- cells -----------------------------------------------------------------------------------------


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield f"|{'|'.join(headers)}|"
    yield "|" + "---|" * len(headers)
    for row in rows:
        yield f"|{'|'.join(row)}|"


def with_lines(page: str, begin: str, end: str, lines: Iterable[str]) -> str:
    """Return `page` with `lines` between its two marks. Raises ValueError without them."""
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page has no line {begin!r} with {end!r} after it")
    return "\n".join([before + begin, *lines, end]) + after


def cell(spread: Spread | None) -> str:
    """Return a median with its spread as it is read; `-` where nothing was measured."""
    if spread is None:
        return "-"
    median = number(spread.median)
    low, high = number(spread.low), number(spread.high)
    if spread.count < 2 or low == high:
        return median
    return f"{median} ({low}-{high})"


def number(value: float) -> str:
    """Return a number as it is read: three significant digits."""
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or not value else f"{value:.3g}"
