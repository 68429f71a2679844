"""The figures to reach on two cores, and what was measured."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from benchmarks.open_load import FIXED_ROWS, SHARES_PERCENT
from benchmarks.summary import Lines, Spread, as_spread, own_share, spread_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_RATE = "delivered_per_second"


class Goal(Struct, frozen=True, kw_only=True):
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
        *_against_rivals(of("comparison")),
        *_rates(of("comparison")),
        *_open_load(of("open_load")),
        *_scale(of("scale")),
        *_shares(of("cpu")),
        *_stored(results),
        *_filled(results),
        *_verified(results),
    ]


def _against_rivals(lines: Lines) -> Iterator[Goal]:
    for base, title, targets in (
        ("bare_pages", "bare pipe of pages", {100: 0.75, 1_000: 0.8, 5_000: 0.75}),
        ("bare_pipe", "bare pipe, a row per order", {100: 0.85, 1_000: 1.25, 5_000: 1.2}),
        (
            "kafka_transactions_events",
            "Kafka transactions, events",
            {100: 3.2, 1_000: 1.9, 5_000: 1.5},
        ),
        (
            "kafka_transactions_frames",
            "Kafka transactions, frames",
            {100: 2.5, 1_000: 1.25, 5_000: 0.65},
        ),
    ):
        for rows, target in targets.items():
            yield Goal(
                text=f"end to end / {title}, batch {rows:,}",
                bound=">=",
                target=target,
                measured=lines.ratio(f"engine {rows}", f"{base} {rows}", _RATE),
            )
    yield Goal(
        text="persisting / eventsourcing, batch 1,000",
        bound=">=",
        target=5,
        measured=lines.ratio(
            "engine 1000 persisting", "event_sourcing 1000 persisting", "persisted_per_second"
        ),
    )


def _rates(lines: Lines) -> Iterator[Goal]:
    for rows, target in ((1_000, 250_000), (5_000, 350_000)):
        yield Goal(
            text=f"end to end, batch {rows:,} (a stretch)",
            bound=">=",
            target=target,
            measured=lines.spread(f"engine {rows}", _RATE),
            unit="/s",
        )


def _open_load(lines: Lines) -> Iterator[Goal]:
    for share in SHARES_PERCENT:
        yield Goal(
            text=f"self-clocking / best fixed batch size at {share} % load, p99",
            bound="<=",
            target=1.1,
            measured=_against_best(lines, share, "p99"),
        )
    yield Goal(
        text="p99 at half load / (commit p99 + send p99 + batch window)",
        bound="<=",
        target=3,
        measured=_against_floor(lines),
    )


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


def arm_name(share_percent: int, fixed_rows: int) -> str:
    """Return the name of an arm of the open load."""
    policy = "self-clocking" if fixed_rows == 0 else f"batches of {fixed_rows}"
    return f"{share_percent} %, {policy}"


def _scale(lines: Lines) -> Iterator[Goal]:
    short, long = "100000 rows", "10000000 rows"
    yield Goal(
        text="rate at 10^7 rows / rate at 10^5",
        bound=">=",
        target=0.95,
        measured=lines.ratio(long, short, _RATE),
    )
    for end, title in (("producer", "sequencer"), ("receiver", "receiver")):
        figure = f"{end}_memory_mib"
        yield Goal(
            text=f"resident memory of the {title} at 10^7 orders / at 10^5",
            bound="<=",
            target=1.15,
            measured=lines.ratio(long, short, figure),
        )
        yield Goal(
            text=f"resident memory of the {title} at 10^7 orders",
            bound="<=",
            target=150,
            measured=lines.spread(long, _megabytes(figure)),
            unit=" MB",
        )


def _megabytes(figure: str) -> Callable[[dict[str, float]], float]:
    return lambda figures: figures[figure] * 2**20 / 1e6


def _shares(lines: Lines) -> Iterator[Goal]:
    for rows in (1_000, 5_000):
        yield Goal(
            text=f"the engine's own share of all CPU seconds, batch {rows:,}",
            bound="<=",
            target=0.35,
            measured=lines.spread(f"engine {rows}", own_share),
        )


def _stored(results: Mapping[str, dict[str, Any]]) -> Iterator[Goal]:
    if "commit_path" not in results:
        return
    for name, title, targets in (
        ("cpu_us", "server CPU of a commit", {100: 0.95, 1_000: 0.45, 5_000: 0.5}),
        ("wal_bytes", "PostgreSQL's log", {100: 0.7, 1_000: 0.65, 5_000: 0.65}),
        ("disk_bytes", "disk", {100: 0.8, 1_000: 0.7, 5_000: 0.7}),
    ):
        for rows, target in targets.items():
            where = ("figures", f"cost of an order, batch {rows}", name, "pages", "ratio")
            yield Goal(
                text=f"{title}, pages / a row per order, batch {rows:,}",
                bound="<=",
                target=target,
                measured=_found(results["commit_path"], where),
            )


def _filled(results: Mapping[str, dict[str, Any]]) -> Iterator[Goal]:
    if "fill" not in results:
        return
    for rows, target in ((100, 0.5), (1_000, 0.9), (20_000, 1.8)):
        yield Goal(
            text=f"rate of a fill of {rows:,} orders / a SELECT from a row per order",
            bound=">=",
            target=target,
            measured=_found(results["fill"], ("ranges_ms", str(rows), "rate_to_select")),
        )


def _verified(results: Mapping[str, dict[str, Any]]) -> Iterator[Goal]:
    if "spark_jdbc" in results:
        yield Goal(
            text="rate of the check of a database / a bare count and sum of its rows by JDBC",
            bound=">=",
            target=0.8,
            measured=_found(results["spark_jdbc"], ("arms", "check", "rate_to_bare")),
        )


def _found(result: dict[str, Any], where: Sequence[str]) -> Spread | None:
    """Return the figure at a place of a program's result; None where it has none."""
    found: Any = result
    for name in where:
        found = found.get(name, {})
    return as_spread(found) if found else None
