"""Table, goals and figures from the saved lines.

`python -m benchmarks --report [--output FOLDER]` makes them. `python -m benchmarks.report` puts the
rates of the last run into README.md, between two marks.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from benchmarks.drawing import draw_figures
from benchmarks.host import RESULTS
from benchmarks.open_load import FIXED_ROWS, SHARES_PERCENT, arm_name
from benchmarks.outbox import BASE
from benchmarks.questions import BATCH_ROWS, COMMON_ROWS, KEYS_OFF, NAMES, STAGES, question_of
from benchmarks.rivals.rival import rival_of
from benchmarks.session import CONDITIONS, Conditions, read_lines
from benchmarks.spreads import (
    PROCESSES,
    RATE,
    Lines,
    Spread,
    cell,
    number,
    own_share,
    per_million,
    spread_of,
    table,
)
from orderchain.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from benchmarks.load import Figures


TABLE: Final = "table.md"

# -- goals: the figures to reach on two cores, and what was measured -------------------------------

_Bound = Literal[">=", "<="]


class Goal(Struct, frozen=True):
    """A figure, what it should be, and what it was."""

    text: str
    bound: _Bound
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


def goals(lines: Mapping[str, Lines]) -> Iterator[Goal]:
    """Yield every goal, in the order of the page; `lines` are by question."""
    for question, goals_of in _GOALS.items():
        yield from goals_of(lines.get(question, Lines([])))


def _goals_of_comparison(lines: Lines) -> Iterator[Goal]:
    for base, title, targets in (
        ("bare_pages", "bare pipe of pages", (0.75, 0.8, 0.75)),
        ("bare_pipe", "bare pipe, a row per order", (0.85, 1.25, 1.2)),
        ("kafka_transactions_events", "Kafka transactions, events", (3.2, 1.9, 1.5)),
        ("kafka_transactions_frames", "Kafka transactions, frames", (2.5, 1.25, 0.65)),
    ):
        for rows, target in zip(BATCH_ROWS, targets, strict=True):
            measured = lines.ratio(f"engine {rows}", f"{base} {rows}", RATE)
            yield Goal(f"end to end / {title}, batch {rows:,}", ">=", target, measured)
    arms = "engine 1000 persisting", "event_sourcing 1000 persisting"
    measured = lines.ratio(*arms, "persisted_per_second")
    yield Goal("persisting / eventsourcing, batch 1,000", ">=", 5, measured)
    for rows, target in ((1_000, 250_000), (5_000, 350_000)):
        measured = lines.spread(f"engine {rows}", RATE)
        yield Goal(f"end to end, batch {rows:,} (a stretch)", ">=", target, measured, "/s")
        share = lines.spread(f"engine {rows}", own_share)
        yield Goal(f"own share of all CPU seconds, batch {rows:,}", "<=", 0.35, share)


def _goals_of_open_load(lines: Lines) -> Iterator[Goal]:
    for share in SHARES_PERCENT:
        text = f"self-clocking / best fixed batch size at {share} % load, p99"
        yield Goal(text, "<=", 1.1, _against_best(lines, share))
    text = "p99 at half load / (commit p99 + send p99 + batch window)"
    yield Goal(text, "<=", 3, _against_floor(lines))


def _against_best(lines: Lines, share: int) -> Spread | None:
    """Return the p99 against that of the best fixed size, each over all repeats together."""
    own, *fixed = (lines.percentiles(arm_name(share, rows)) for rows in (0, *FIXED_ROWS))
    others = [found["p99"] for found in fixed if found]
    return spread_of([own["p99"] / min(others)] if own and others else [])


def rounds_against_best(lines: Lines, share: int, percentile: str) -> Spread | None:
    """Return the spread of self-clocking against the best fixed size of each round.

    A repeat on a disk that stalled is one value here; in a histogram that the repeats share, it is
    all of the tail.
    """
    names = (arm_name(share, rows) for rows in (0, *FIXED_ROWS))
    own, *fixed = (lines.percentile_by_repeat(name, percentile) for name in names)
    return spread_of(
        value / min(others)
        for repeat, value in own.items()
        if (others := [found[repeat] for found in fixed if repeat in found])
    )


def _against_floor(lines: Lines) -> Spread | None:
    half = arm_name(50, 0)
    own, window = lines.percentiles(half), lines.spread(half, "batch_window_ms")
    floor = [lines.percentiles("floor", f"{name}_histogram") for name in ("commit", "send")]
    if own is None or window is None or not all(floor):
        return None
    return spread_of([own["p99"] / (sum(one["p99"] for one in floor if one) + window.median)])


def _goals_of_scale(lines: Lines) -> Iterator[Goal]:
    short, long = "100000 rows", "10000000 rows"
    rate = lines.ratio(long, short, RATE)
    yield Goal("rate at 10^7 rows / rate at 10^5", ">=", 0.95, rate)
    for end, title in (("producer", "sequencer"), ("receiver", "receiver")):
        figure = f"{end}_memory_mib"
        text = f"resident memory of the {title} at 10^7 orders"
        yield Goal(f"{text} / at 10^5", "<=", 1.15, lines.ratio(long, short, figure))
        yield Goal(text, "<=", 150, lines.spread(long, partial(_megabytes, figure)), " MB")


def _megabytes(figure: str, figures: Figures) -> float:
    return float(figures[figure] * 2**20 / 1e6)


def _goals_of_fill(lines: Lines) -> Iterator[Goal]:
    for rows, target in ((100, 0.5), (1_000, 0.9), (20_000, 1.8)):
        text = f"rate of a fill of {rows:,} orders / a SELECT from a row per order"
        yield Goal(text, ">=", target, lines.spread(f"{rows:,} orders", "rate_to_select"))


def _goals_of_spark(lines: Lines) -> Iterator[Goal]:
    text = "rate of the check of a database / a bare count and sum of its rows by JDBC"
    yield Goal(text, ">=", 0.8, lines.spread("database", _rate_to_bare))


def _rate_to_bare(figures: Figures) -> float:
    return float(figures["bare_seconds"] / figures["check_seconds"])


_GOALS: Final[dict[str, Callable[[Lines], Iterator[Goal]]]] = {
    "comparison": _goals_of_comparison,
    "open_load": _goals_of_open_load,
    "scale": _goals_of_scale,
    "fill": _goals_of_fill,
    "spark": _goals_of_spark,
}


# -- the page --------------------------------------------------------------------------------------

_MACHINE: Final = ("processor", "cores", "memory_gib", "kernel")
"""What distinguishes one machine from another."""


def write_report(folder: Path) -> list[Path]:
    """Write table and figures of what is saved in `folder`; return what was written.

    Raises RefusedError where nothing is: a table that is there is left as it is.
    """
    lines = _saved(folder, NAMES)
    path = folder / TABLE
    path.write_text("\n".join(_page(folder, lines)) + "\n", encoding="utf-8")
    return [path, *draw_figures(folder, lines)]


def _saved(folder: Path, names: Iterable[str]) -> dict[str, Lines]:
    found = {name: Lines(read_lines(folder / f"{name}.jsonl")) for name in names}
    lines = {name: these for name, these in found.items() if these.all}
    if not lines:
        raise RefusedError("output", folder, "a folder with saved results: run `make bench` first")
    return lines


def _page(folder: Path, lines: Mapping[str, Lines]) -> Iterator[str]:
    yield from ("# Results", "")
    yield "Made by `make bench`; what each means stands in [the page](../../docs/benchmarks.md)."
    yield ""
    yield from _told_conditions(_conditions(folder, lines))
    rows: list[Sequence[str]] = [
        (
            goal.text,
            f"{goal.bound} {number(goal.target)}{goal.unit}",
            cell(goal.measured, goal.unit),
            {True: "yes", False: "**no**", None: "-"}[goal.is_reached],
        )
        for goal in goals(lines)
    ]
    yield from ("## Goals", "", *table(("figure", "goal", "measured", "reached"), rows), "")
    for name, these in lines.items():
        section = _SECTIONS[name]
        yield from (f"## {question_of(name).title}", "", *section.before(these))
        yield from table(section.headers, section.rows(these))
        yield from (*section.after(these), *_left_out(these), "")


def _conditions(folder: Path, lines: Mapping[str, Lines]) -> list[Conditions]:
    path = folder / CONDITIONS
    runs = {line.run for these in lines.values() for line in these.all}
    texts = path.read_bytes().splitlines() if path.is_file() else []
    found = [msgspec.json.decode(text, type=Conditions) for text in texts]
    return [conditions for conditions in found if conditions.run in runs]


def _told_conditions(conditions: Sequence[Conditions]) -> Iterator[str]:
    if not conditions:
        return
    last, host = conditions[-1], conditions[-1].host
    libraries = msgspec.convert(host["libraries"], dict[str, str])
    yield f"- {host['processor']}, {host['cores']} cores, {host['memory_gib']} GiB"
    yield f"- Linux {host['kernel']}, Python {host['python']}, {_listed(libraries)}"
    yield f"- commit {host['commit']}, engine {last.engine}, {last.run}, {len(conditions)} run(s)"
    if len({one.engine for one in conditions}) > 1:
        yield "- **questions were asked of several engines**: the field `engine` of the lines tells"
    if len({tuple(str(one.host[name]) for name in _MACHINE) for one in conditions}) > 1:
        yield "- **runs were on several machines**, this being the last: `conditions.jsonl` and"
        yield "  the field `run` of the lines tell"
    yield f"- PostgreSQL: {_listed(last.postgres)}"
    disk = {name: f"{microseconds:,.0f} us" for name, microseconds in last.disk.items()}
    yield f"- a write of 8 KB by pg_test_fsync: {_listed(disk) or 'not measured'}"
    yield "- servers warm; one order in twenty ahead of each run; garbage collector on, what was"
    yield "  made before the timed part frozen"
    yield "- each cell: median (lowest to highest) of the repeats; ratios within one round"
    yield ""


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _left_out(lines: Lines) -> Iterator[str]:
    for arm, reason in lines.skipped.items():
        yield from ("", f"Skipped: {_spaced(arm)}: {reason}.")
    for line in lines.failed:
        yield ""
        yield f"**No figure**: {line.arm}, repeat {line.repeat + 1}: {line.failure}"


# -- a section per question: a row for each arm ----------------------------------------------------

_BASES: Final = {"bare_pages": "/ bare pipe of pages", "bare_pipe": "/ a row per order"}
"""What rates are compared with, with the titles of the columns."""

_LOADS: Final = {arm_name(share, rows) for share in SHARES_PERCENT for rows in (0, *FIXED_ROWS)}
_PERCENTILES: Final = ("p50", "p90", "p99", "p99.9", "max")


def _nothing(lines: Lines) -> Iterator[str]:
    yield from ()


class _Section(NamedTuple):
    headers: tuple[str, ...]
    cells: Callable[[Lines, str], Sequence[str | Spread | None]]
    """Of an arm, by its name; nothing for one that has no row."""
    before: Callable[[Lines], Iterator[str]] = _nothing
    after: Callable[[Lines], Iterator[str]] = _nothing

    def rows(self, lines: Lines) -> Iterator[Sequence[str]]:
        for arm in lines.arms:
            found = self.cells(lines, arm)
            if found:
                yield [one if isinstance(one, str) else cell(one) for one in found]


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _count(arm: str) -> str:
    return f"{int(arm.split(' ')[0]):,}"


def _against_bases(lines: Lines, arm: str, figure: str) -> Iterator[Spread | None]:
    """Yield the ratios of an arm to those of the bases that are run as it is."""
    rival = arm.partition(" ")[0]
    for base in _BASES:
        yield lines.ratio(arm, arm.replace(rival, base).removesuffix(" with keys"), figure)


def _rate_of(is_persisting: bool) -> str:
    return "persisted_per_second" if is_persisting else RATE


def _comparison(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    is_persisting = arm.endswith("persisting")
    figure = _rate_of(is_persisting)
    own = lines.spread(arm, figure), *_against_bases(lines, arm, figure)
    return _spaced(arm), *own, None if is_persisting else lines.spread(arm, own_share)


def _cpu(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    costs = (lines.spread(arm, per_million(process)) for process in PROCESSES)
    every, log = lines.spread(arm, per_million(*PROCESSES)), lines.spread(arm, _log_bytes)
    return _spaced(arm), *costs, every, log


def _log_bytes(figures: Figures) -> float:
    return float(figures["wal_mib"] * 2**20 / figures["orders"])


def _common(lines: Lines) -> Iterator[str]:
    common = lines.ratio(f"engine {COMMON_ROWS}", f"common_way {COMMON_ROWS}", RATE)
    yield ""
    yield f"Against the common way, batch {COMMON_ROWS}: {cell(common)}. Each of its statements"
    yield "waits for the loopback, so this is a figure of the machine more than of either."
    yield from ("", "CPU seconds per million orders by process, and bytes of PostgreSQL's log.", "")
    costs = _Section(("rival, batch", *PROCESSES, "all", "log bytes per order"), _cpu)
    end_to_end = Lines(line for line in lines.all if not line.arm.endswith("persisting"))
    yield from table(costs.headers, costs.rows(end_to_end))


def _batch_size(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    rival, size, stage = arm.split(" ")
    figure = f"{STAGES[stage]}_per_second"
    ratios = _against_bases(lines, arm, figure)
    return f"{int(size):,}", stage, _spaced(rival), lines.spread(arm, figure), *ratios


def _open_load(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    cells = _waits(lines, arm, _PERCENTILES) if arm in _LOADS else ()
    return (arm, *cells, lines.percentile_spread(arm, "p99")) if cells else ()


def _waits(lines: Lines, arm: str, percentiles: Sequence[str]) -> tuple[str, ...]:
    """Return percentiles of an arm, and p50 and p99 up to the ack; nothing for another arm."""
    found, ack = lines.percentiles(arm), lines.percentiles(arm, "ack_histogram")
    if found is None or ack is None:
        return ()
    return (*(number(found[one]) for one in percentiles), number(ack["p50"]), number(ack["p99"]))


def _before_open_load(lines: Lines) -> Iterator[str]:
    maximum = cell(lines.spread("maximum", RATE))
    yield f"Maximum: {maximum} orders/s. Milliseconds from the intended time of an order until it"
    yield "was handed on; percentiles over all repeats together, and beside them how the p99 of one"
    yield from ("repeat moved.", "")


def _after_open_load(lines: Lines) -> Iterator[str]:
    rounds = [
        (f"{share} %", cell(found))
        for share in SHARES_PERCENT
        if (found := rounds_against_best(lines, share, "p99")) is not None
    ]
    if rounds:
        yield ""
        yield from table(("load", "p99, self-clocking / best fixed size of a round"), rounds)
    for name, title in (
        ("commit_histogram", "one commit after the other"),
        ("send_histogram", "one acked send after the other"),
        ("due_commit_histogram", "commits on a schedule, from when each was due"),
        ("due_send_histogram", "acked sends on a schedule, from when each was due"),
    ):
        if alone := lines.percentiles("floor", name):
            told = ", ".join(f"{p} {number(alone[p])}" for p in _PERCENTILES)
            yield from ("", f"Alone on the machine, {title}: {told} ms.")


def _scale(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    rates = lines.spread(arm, RATE), lines.ratio(arm, lines.arms[0], RATE)
    memory = (lines.spread(arm, f"{end}_memory_mib") for end in ("producer", "receiver"))
    return _count(arm), *rates, *memory


def _figures(
    figures: Sequence[tuple[str, str]], lines: Lines, arm: str
) -> Sequence[str | Spread | None]:
    return _spaced(arm), *(lines.spread(arm, figure) for _, figure in figures)


def _plain(title: str, *figures: tuple[str, str]) -> _Section:
    """Return a section with a column for each figure, of which an arm need not have all."""
    return _Section((title, *(name for name, _ in figures)), partial(_figures, figures))


def _keys(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    figure = _rate_of(is_persisting=True)
    return arm, lines.spread(arm, figure), lines.ratio(arm, KEYS_OFF, figure)


def _outbox(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    rate = "messages_per_second"
    if (messages := lines.spread(arm, rate)) is not None:
        return arm, messages, lines.ratio(arm, BASE, rate), *["-"] * len(_PERCENTILES)
    found = lines.percentiles(arm) or {}
    stored = lines.spread(arm, "stored_per_second")
    return arm, stored, "-", *(number(found[name]) for name in _PERCENTILES)


_SECTIONS: Final = {
    "comparison": _Section(
        ("rival, batch", "orders/s", *_BASES.values(), "own share of CPU"),
        _comparison,
        after=_common,
    ),
    "batch_size": _Section(("batch", "stage", "rival", "orders/s", *_BASES.values()), _batch_size),
    "open_load": _Section(
        ("load, policy", *_PERCENTILES, "ack p50", "ack p99", "p99 of a repeat"),
        _open_load,
        _before_open_load,
        _after_open_load,
    ),
    "scale": _Section(
        ("rows before", "orders/s", "/ shortest", "sequencer MiB", "receiver MiB"), _scale
    ),
    "fill": _plain(
        "gap",
        ("fill, ms: p50", "fill_p50"),
        ("p99", "fill_p99"),
        ("SELECT, ms: p50", "select_p50"),
        ("p99", "select_p99"),
        ("rate / SELECT", "rate_to_select"),
        ("orders/s", "rows_per_second"),
    ),
    "keys": _Section(("keys", "orders/s", f"/ {KEYS_OFF}"), _keys),
    "outbox": _Section(
        ("way", "messages/s", f"/ {BASE}", *(f"{one}, ms" for one in _PERCENTILES)), _outbox
    ),
    "spark": _plain(
        "rows",
        ("check, s", "check_seconds"),
        ("scan, s", "scan_seconds"),
        ("check / scan", "check_to_scan"),
        ("lag() / scan", "lag_to_scan"),
        ("anti join / scan", "anti_join_to_scan"),
        ("bare read by JDBC, s", "bare_seconds"),
        ("check / bare", "check_to_bare"),
        ("--local / bare", "local_to_bare"),
        ("lag() / bare", "lag_to_bare"),
        ("spilled, bytes", "spilled_bytes"),
        ("heap of the driver, MiB", "driver_heap_peak_mib"),
        ("of an executor", "executor_heap_peak_mib"),
    ),
}


# -- rates and latencies in README.md --------------------------------------------------------------

README: Final = Path(__file__).parent.parent / "README.md"
BEGIN: Final = "<!-- benchmark: written by `python -m benchmarks.report` -->"
END: Final = "<!-- benchmark: end -->"

_RATE_HEADERS: Final = ("orders/s, median (lowest to highest)", "batch 100", "1,000", "5,000")
_LATENCY_HEADERS: Final = (
    "load, % of the maximum",
    *("submit to handed on, ms: p50", "p99", "p99.9"),
    *("to the ack: p50", "p99"),
)
_SHOWN: Final = (
    "bare_pages", "bare_pipe", "engine", "kafka_transactions_events",
    "kafka_transactions_frames", "event_sourcing", "nats_jetstream", "common_way",
)  # fmt: skip


def _rates(lines: Lines) -> Iterator[Sequence[str]]:
    """Yield the rows of the table: rivals down, batch sizes across, orders per second."""
    for name in _SHOWN:
        sizes = [f"{name} {rows}" for rows in BATCH_ROWS]
        title = rival_of(name).title
        if name == "common_way":
            sizes[1] = f"{name} {COMMON_ROWS}"
            title += f" (at {COMMON_ROWS})"
        cells = [cell(lines.spread(arm, RATE)) for arm in sizes]
        if any(text != "-" for text in cells):
            yield (f"**{title}**" if name == "engine" else title, *cells)


def _latencies(lines: Lines) -> Iterator[Sequence[str]]:
    """Yield the rows of the table: loads down, percentiles across, as the engine batches itself."""
    for share in SHARES_PERCENT:
        if cells := _waits(lines, arm_name(share, 0), ("p50", "p99", "p99.9")):
            yield (f"{share} %", *cells)


def with_tables(text: str, comparison: Lines, open_load: Lines) -> str:
    """Return `text` with the tables between its marks. Raises ValueError without them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README.name} has no line {BEGIN!r} with {END!r} after it")
    rates = table(_RATE_HEADERS, _rates(comparison))
    waits = table(_LATENCY_HEADERS, _latencies(open_load))
    return "\n".join([before + BEGIN, *rates, "", *waits, END]) + after


def main() -> None:
    """Write README.md."""
    try:
        lines = _saved(RESULTS, ("comparison", "open_load"))
    except RefusedError as error:
        sys.exit(str(error))
    text = with_tables(README.read_text(encoding="utf-8"), lines["comparison"], lines["open_load"])
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
