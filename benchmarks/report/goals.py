"""The figures to reach on two cores, and what was measured."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from benchmarks.open_load import FIXED_ROWS, SHARES_PERCENT, arm_name
from benchmarks.spreads import Lines, Spread, as_spread, own_share, spread_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.question import Figures

_RATE: Final = "delivered_per_second"


class Goal(Struct, frozen=True):
    """A figure, what it should be, and what it was."""

    text: str
    bound: Literal[">=", "<="]
    target: float
    measured: Spread | None
    unit: str = ""

    @property
    def is_reached(self) -> bool | None:
        """Whether the median is within the bound; None when nothing was measured."""
        if self.measured is None:
            return None
        median = self.measured.median
        return median >= self.target if self.bound == ">=" else median <= self.target


def goals(
    lines: Mapping[str, Lines], results: Mapping[str, dict[str, Any]] = MappingProxyType({})
) -> list[Goal]:
    """Return every goal, in the order of the page.

    `lines` are by question; `results` are the last ones of programs of their own, by program. A
    program without one has no goal.
    """
    empty = Lines([])

    def of(question: str) -> Lines:
        return lines.get(question, empty)

    return [
        *_comparison(of("comparison")),
        *_open_load(of("open_load")),
        *_scale(of("scale")),
        *_shares(of("cpu")),
        *_programs(results),
    ]


def _comparison(lines: Lines) -> Iterator[Goal]:
    for base, title, targets in (
        ("bare_pages", "bare pipe of pages", (0.75, 0.8, 0.75)),
        ("bare_pipe", "bare pipe, a row per order", (0.85, 1.25, 1.2)),
        ("kafka_transactions_events", "Kafka transactions, events", (3.2, 1.9, 1.5)),
        ("kafka_transactions_frames", "Kafka transactions, frames", (2.5, 1.25, 0.65)),
    ):
        for rows, target in zip((100, 1_000, 5_000), targets, strict=True):
            measured = lines.ratio(f"engine {rows}", f"{base} {rows}", _RATE)
            yield Goal(f"end to end / {title}, batch {rows:,}", ">=", target, measured)
    measured = lines.ratio(
        "engine 1000 persisting", "event_sourcing 1000 persisting", "persisted_per_second"
    )
    yield Goal("persisting / eventsourcing, batch 1,000", ">=", 5, measured)
    for rows, target in ((1_000, 250_000), (5_000, 350_000)):
        measured = lines.spread(f"engine {rows}", _RATE)
        yield Goal(f"end to end, batch {rows:,} (a stretch)", ">=", target, measured, "/s")


def _open_load(lines: Lines) -> Iterator[Goal]:
    for share in SHARES_PERCENT:
        text = f"self-clocking / best fixed batch size at {share} % load, p99"
        yield Goal(text, "<=", 1.1, _against_best(lines, share, "p99"))
    text = "p99 at half load / (commit p99 + send p99 + batch window)"
    yield Goal(text, "<=", 3, _against_floor(lines))


def _against_best(lines: Lines, share: int, percentile: str) -> Spread | None:
    """Return self-clocking against the best fixed size, each over all repeats together."""
    own = lines.percentiles(arm_name(share, 0))
    fixed = [
        found[percentile]
        for rows in FIXED_ROWS
        if (found := lines.percentiles(arm_name(share, rows))) is not None
    ]
    return spread_of([own[percentile] / min(fixed)] if own is not None and fixed else [])


def rounds_against_best(lines: Lines, share: int, percentile: str) -> Spread | None:
    """Return the spread of self-clocking against the best fixed size of each round.

    A repeat on a disk that stalled is one value here; in a histogram that the repeats share, it is
    all of the tail.
    """
    own = lines.percentile_by_repeat(arm_name(share, 0), percentile)
    fixed = [lines.percentile_by_repeat(arm_name(share, rows), percentile) for rows in FIXED_ROWS]
    return spread_of(
        value / min(others)
        for repeat, value in own.items()
        if (others := [found[repeat] for found in fixed if repeat in found])
    )


def _against_floor(lines: Lines) -> Spread | None:
    own = lines.percentiles(arm_name(50, 0))
    commit = lines.percentiles("floor", "commit_histogram")
    send = lines.percentiles("floor", "send_histogram")
    window = lines.spread(arm_name(50, 0), "batch_window_ms")
    if own is None or commit is None or send is None or window is None:
        return None
    return spread_of([own["p99"] / (commit["p99"] + send["p99"] + window.median)])


def _scale(lines: Lines) -> Iterator[Goal]:
    short, long = "100000 rows", "10000000 rows"
    rate = lines.ratio(long, short, _RATE)
    yield Goal("rate at 10^7 rows / rate at 10^5", ">=", 0.95, rate)
    for end, title in (("producer", "sequencer"), ("receiver", "receiver")):
        figure = f"{end}_memory_mib"
        text = f"resident memory of the {title} at 10^7 orders"
        yield Goal(f"{text} / at 10^5", "<=", 1.15, lines.ratio(long, short, figure))
        found = lines.spread(long, partial(_megabytes, figure))
        yield Goal(text, "<=", 150, found, " MB")


def _megabytes(figure: str, figures: Figures) -> float:
    return float(figures[figure] * 2**20 / 1e6)


def _shares(lines: Lines) -> Iterator[Goal]:
    for rows in (1_000, 5_000):
        text = f"the engine's own share of all CPU seconds, batch {rows:,}"
        yield Goal(text, "<=", 0.35, lines.spread(f"engine {rows}", own_share))


_Bound = tuple[str, Literal[">=", "<="], float, tuple[str, ...]]

_PROGRAMS: Final[dict[str, list[_Bound]]] = {
    "commit_path": [
        (
            f"{title}, pages / a row per order, batch {rows:,}",
            "<=",
            target,
            ("figures", f"cost of an order, batch {rows}", name, "pages", "ratio"),
        )
        for name, title, targets in (
            ("cpu_us", "server CPU of a commit", (0.95, 0.45, 0.5)),
            ("wal_bytes", "PostgreSQL's log", (0.7, 0.65, 0.65)),
            ("disk_bytes", "disk", (0.8, 0.7, 0.7)),
        )
        for rows, target in zip((100, 1_000, 5_000), targets, strict=True)
    ],
    "fill": [
        (
            f"rate of a fill of {rows:,} orders / a SELECT from a row per order",
            ">=",
            target,
            ("ranges_ms", str(rows), "rate_to_select"),
        )
        for rows, target in ((100, 0.5), (1_000, 0.9), (20_000, 1.8))
    ],
    "spark_jdbc": [
        (
            "rate of the check of a database / a bare count and sum of its rows by JDBC",
            ">=",
            0.8,
            ("arms", "check", "rate_to_bare"),
        )
    ],
}
"""Goals of programs of their own, with the place of the figure in the result."""


def _programs(results: Mapping[str, dict[str, Any]]) -> Iterator[Goal]:
    for name, bounds in _PROGRAMS.items():
        if name in results:
            for text, bound, target, where in bounds:
                found: Any = results[name]
                for key in where:
                    found = found.get(key, {})
                yield Goal(text, bound, target, as_spread(found) if found else None)
