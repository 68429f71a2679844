"""Whether what was sampled has grown: a robust line through the second half of a run."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

SAMPLES_MIN: Final = 6
"""In the second half; with less, a line says nothing."""

BOUNDS: Final = {
    "memory": (0.10, 16.0),  # an allocator keeps what a burst after an outage took
    "descriptors": (0.0, 8.0),  # connections that are being replaced
    "connections": (0.0, 8.0),
    "bloat": (0.25, 2.0),  # rows that are updated until autovacuum comes, once a minute
    "disk": (0.25, 96.0),  # retention frees whole partitions, Kafka whole segments
    "lag": (0.0, 2.0),  # a busy machine; an outage is no line
}
"""What the second half may add, by the first word of a series: the larger one of a part of what is
there, and of so many MB, descriptors or seconds."""


class Line(NamedTuple):
    """What came of one series."""

    name: str
    first: float
    """The median of the first half."""
    second: float
    growth: float
    """What the line adds over the second half."""
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.allowed


class Samples:
    """Values by the names of their series, and the second of the run at which each was seen."""

    def __init__(self) -> None:
        self._points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, at: float, **values: float) -> None:
        for name, value in values.items():
            self._points[name].append((at, value))

    def last(self) -> str:
        """Return the last value of each series, in short."""
        return ", ".join(f"{name} {points[-1][1]:.0f}" for name, points in self._points.items())

    def lines(self) -> list[Line]:
        """Return a line for each series that lasted."""
        half = max((points[-1][0] for points in self._points.values()), default=0.0) / 2
        found = (_line(*each, half) for each in sorted(self._points.items()))
        return [line for line in found if line is not None]


def _line(name: str, points: list[tuple[float, float]], half: float) -> Line | None:
    first = [value for at, value in points if at < half]
    second = [point for point in points if point[0] >= half]
    if not first or len(second) < SAMPLES_MIN:
        return None
    # The median of the slopes between all pairs: a third of the samples may be anything.
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(second, 2)]
    part, floor = BOUNDS[name.partition("_")[0]]
    level, seconds = median(value for _, value in second), second[-1][0] - second[0][0]
    return Line(name, median(first), level, median(slopes) * seconds, max(floor, part * level))


def table(lines: list[Line]) -> str:
    """Return the lines as a table for people."""
    shown = [f"{'':24} {'first half':>10} {'second':>10} {'growth':>10} {'allowed':>10}"]
    shown += [
        f"{line.name.replace('_', ' '):24} {line.first:10.1f} {line.second:10.1f} "
        f"{line.growth:+10.1f} {line.allowed:10.1f}{'' if line.is_flat else '  GROWS'}"
        for line in lines
    ]
    return "\n".join(shown)
