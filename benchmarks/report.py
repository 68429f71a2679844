"""Table and figures from the saved lines.

`python -m benchmarks --only-report [--output FOLDER]` makes them. `python -m benchmarks.report`
puts rates and latencies of the last run into README.md, between two marks.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from benchmarks.drawing import draw_figures
from benchmarks.host import RESULTS
from benchmarks.questions import (
    BATCH_ROWS,
    COMMON_ROWS,
    KEYS_OFF,
    KINDS,
    NAMES,
    NOT_COMPARED,
    STAGES,
    question_of,
)
from benchmarks.rivals.rival import rival_of
from benchmarks.runs.open_load import (
    IN_PYTHON,
    ONE_BY_ONE_IN_PYTHON,
    OVERLOAD_PERCENT,
    PIPE,
    RATES,
    WAYS,
    rate_name,
    share_name,
)
from benchmarks.runs.outbox import BASE
from benchmarks.runs.overload import WITHIN_SECONDS
from benchmarks.session import CONDITIONS, Conditions, read_lines, saved_in
from benchmarks.spreads import (
    PROCESSES,
    RATE,
    Lines,
    Spread,
    cell,
    number,
    own_share,
    per_million,
    table,
    with_lines,
)
from chain_kernel.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from benchmarks.load import Figures


TABLE: Final = "table.md"

# -- the page --------------------------------------------------------------------------------------


def write_report(folder: Path) -> list[Path]:
    """Write table and figures of what is saved in `folder`; return what was written.

    Raises RefusedError where nothing is: a table that is there is left as it is.
    """
    lines = _saved(folder, NAMES)
    path = folder / TABLE
    path.write_text("\n".join(_page(folder, lines)) + "\n", encoding="utf-8")
    return [path, *draw_figures(folder, lines)]


def _saved(folder: Path, names: Iterable[str]) -> dict[str, Lines]:
    found = {name: Lines(read_lines(saved_in(folder, name))) for name in names}
    lines = {name: these for name, these in found.items() if these.all}
    if not lines:
        raise RefusedError("output", folder, "a folder with saved results: run `make bench` first")
    return lines


def _page(folder: Path, lines: Mapping[str, Lines]) -> Iterator[str]:
    yield from ("# Results", "")
    yield "Made by `make bench`; [the page](../../docs/benchmarks.md) says what each means."
    yield ""
    yield from _measured_under(folder, lines)
    for name, these in lines.items():
        section = _SECTIONS[name]
        yield from (f"## {question_of(name).title}", "", *section.before(these))
        yield from table(section.headers, section.rows(these))
        yield from section.after(these)
        for line in these.failed:
            yield from ("", f"**No figure**: {line.arm}, repeat {line.repeat + 1}: {line.failure}")
        yield ""


def _measured_under(folder: Path, lines: Mapping[str, Lines]) -> Iterator[str]:
    path = folder / CONDITIONS
    if not path.is_file():
        return
    last = msgspec.json.decode(path.read_bytes(), type=Conditions)
    host, runs = last.host, len({line.run for these in lines.values() for line in these.all})
    libraries = msgspec.convert(host["libraries"], dict[str, str])
    yield f"- {host['processor']}, {host['cores']} cores, {host['memory_gib']} GiB"
    yield f"- Linux {host['kernel']}, Python {host['python']}, {_listed(libraries)}"
    yield f"- hot functions: {host.get('implementation', 'python')}"
    yield f"- commit {host['commit']}, {last.run}, {runs} run(s)"
    yield f"- PostgreSQL: {_listed(last.postgres)}"
    yield "- each cell: median (lowest-highest) of the repeats; ratios within one round"
    yield ""


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


# -- a section per question: a row for each arm ----------------------------------------------------

_PERCENTILES: Final = ("p50", "p90", "p99", "p99.9", "max")
_SHORT: Final = ("p50", "p99", "p99.9")
FLUSH_ALONE: Final = "one flush of 8 KB after the other"
_ALONE: Final = {
    "order_histogram": "one order after the other, each submitted alone",
    "commit_histogram": "one commit after the other",
    "send_histogram": "one acked send after the other",
    "flush_alone_histogram": FLUSH_ALONE,
    "due_commit_histogram": "commits, each from when it was due",
    "due_send_histogram": "acked sends, each from when it was due",
}


def _nothing(lines: Lines) -> Iterator[str]:
    yield from ()


class _Section(NamedTuple):
    headers: tuple[str, ...]
    cells: Callable[[Lines, str], Sequence[str | Spread | None]]
    """The cells of an arm, by its name; none for one that has no row."""
    before: Callable[[Lines], Iterator[str]] = _nothing
    after: Callable[[Lines], Iterator[str]] = _nothing

    def rows(self, lines: Lines) -> Iterator[Sequence[str]]:
        for arm in lines.arms:
            found = self.cells(lines, arm)
            if found:
                yield [one if isinstance(one, str) else cell(one) if one else "" for one in found]


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _rate_of(is_persisting: bool) -> str:
    return "persisted_per_second" if is_persisting else RATE


def _engine_to(lines: Lines, arm: str, figure: str, kind: str = "") -> Spread | None:
    """Return the ratio of the engine of a kind, at its defaults or another, to an arm."""
    rival = arm.partition(" ")[0]
    own = arm.replace(rival, "engine")
    for name in sorted(KINDS, key=len, reverse=True):
        own = own.removesuffix(f" {name}")
    return lines.ratio(f"{own} {kind}".strip(), arm, figure)


def _comparison(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    is_persisting = arm.endswith("persisting")
    figure = _rate_of(is_persisting)
    is_own = arm.startswith("engine ")
    ratios = ("" if is_own else _engine_to(lines, arm, figure, kind) for kind in KINDS)
    rates = _spaced(arm), lines.spread(arm, figure), *ratios
    if is_persisting:
        return *rates, *[""] * 4
    costs = per_million(*PROCESSES), per_million(*PROCESSES[:1]), own_share, _log_bytes
    return *rates, *(_median(lines.spread(arm, cost)) for cost in costs)


def _median(spread: Spread | None) -> str:
    return number(spread.median) if spread else ""


def _log_bytes(figures: Figures) -> float:
    return float(figures["wal_mib"] * 2**20 / figures["orders"])


def _batch_size(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    """Return the cells of a size and a rival, at the first of their stages."""
    rival, size, _ = arm.split(" ")
    stages = {stage: f"{rival} {size} {stage}" for stage in STAGES}
    if arm != next(one for one in stages.values() if one in lines.arms):
        return ()
    cells: list[str | Spread | None] = [f"{int(size):,}", _spaced(rival)]
    for stage, one in stages.items():
        cells.append(lines.spread(one, f"{STAGES[stage]}_per_second"))
    return cells


def _open_load(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    if not lines.percentiles(arm):
        return ()
    return (
        arm,
        *_waits(lines, arm, "histogram", _SHORT),
        *_waits(lines, arm, "undisturbed_histogram", _SHORT[:2]),
        lines.percentile_spread(arm, "p99"),
        *_waits(lines, arm, "ack_histogram", _SHORT[1:2]),
        *(_median(lines.spread(arm, one)) for one in _PER_COMMIT),
    )


_PER_COMMIT: Final = "batch_rows", "producer_ms_per_batch", "receiver_ms_per_batch", "stall_ms"


def _waits(lines: Lines, arm: str, histogram: str, percentiles: Sequence[str]) -> Iterator[str]:
    """Yield percentiles of an arm, or as many empty cells."""
    found = lines.percentiles(arm, histogram)
    yield from (number(found[one]) if found and found["count"] else "" for one in percentiles)


def _before_open_load(lines: Lines) -> Iterator[str]:
    for arm in ("maximum", f"maximum {IN_PYTHON}"):
        found = cell(lines.spread(arm, RATE))
        above = cell(lines.spread(arm, "not_sustained_per_second"))
        yield f"Sustained {arm}: {found} orders/s; at {above} a queue grew."
    yield "Milliseconds from when an order was due until it was handed on: of all, and of those"
    yield "that no stall of the disk concerned; CPU of producer and receiver in ms per commit."
    yield ""


def _after_open_load(lines: Lines) -> Iterator[str]:
    yield from _overload(lines, share_name(OVERLOAD_PERCENT))
    alone = {title: lines.percentiles("floor", name) for name, title in _ALONE.items()}
    (of_order, _), (of_commit, _), *_ = _ALONE.items()
    in_python = f"floor {IN_PYTHON}"
    alone[f"{_ALONE[of_order]}, {IN_PYTHON}"] = lines.percentiles(in_python, of_order)
    alone["8 KB flushed every 10 ms, beside all runs"] = lines.percentiles(None, "flush_histogram")
    shown = [
        (title, *(number(found[one]) for one in _PERCENTILES))
        for title, found in alone.items()
        if found
    ]
    if shown:
        yield from ("", *table(("alone on the machine, ms", *_PERCENTILES), shown))
    for floor in ("floor", in_python):
        order, commit = (lines.percentiles(floor, name) for name in (of_order, of_commit))
        if order and commit:
            ratio = order["p50"] / commit["p50"]
            yield from ("", f"One order alone / one commit, p50, {floor}: {ratio:.2f}.")
    ratios = [
        (f"{rate:,}/s, {way}", *(f"{ratio:.2f}" for ratio in found))
        for rate in RATES
        for way in (*WAYS, ONE_BY_ONE_IN_PYTHON)
        if way != PIPE and (found := _to_pipe(lines, rate, way))
    ]
    if ratios:
        headers = f"undisturbed / {PIPE} on the same schedule", *_SHORT[:2]
        yield from ("", *table(headers, ratios))


def _overload(lines: Lines, arm: str) -> Iterator[str]:
    accepted, refused = (
        lines.percentiles(arm, f"{kind}_histogram") for kind in ("accepted", "refused")
    )
    if not accepted or not refused:
        return
    rates = (lines.spread(arm, f"{kind}_per_second") for kind in ("offered", "accepted"))
    offered, taken = map(cell, rates)
    yield ""
    yield f"At {arm}, `within` {WITHIN_SECONDS * 1e3:.0f} ms: {taken} of {offered} orders/s"
    yield "accepted, ms from the call to the answer:"
    yield f"p50 {number(accepted['p50'])}, p99 {number(accepted['p99'])}."
    yield f"Refused: {cell(lines.spread(arm, 'refused_share'))} of all, ms after the bound: p50"
    yield f"{number(refused['p50'])}, p99 {number(refused['p99'])}. The producer grew by"
    yield f"{cell(lines.spread(arm, 'memory_growth_mib'))} MiB."


def _to_pipe(lines: Lines, rate: int, way: str) -> list[float]:
    """Return the percentiles of a way against those of the bare pipe, over all repeats each."""
    own, its = (
        lines.percentiles(rate_name(rate, one), "undisturbed_histogram") for one in (way, PIPE)
    )
    if not (own and its and own["count"] and its["count"]):
        return []
    return [own[one] / its[one] for one in _SHORT[:2]]


def _scale(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    rates = lines.spread(arm, RATE), lines.ratio(arm, lines.arms[0], RATE)
    memory = (lines.spread(arm, f"{end}_memory_mib") for end in ("producer", "receiver"))
    return f"{int(arm.split(' ')[0]):,}", *rates, *memory


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
        return arm, messages, lines.ratio(arm, BASE, rate), *[""] * len(_PERCENTILES)
    found = lines.percentiles(arm) or {}
    stored = lines.spread(arm, "stored_per_second")
    return arm, stored, "", *(number(found[name]) for name in _PERCENTILES)


_ALSO_OF_SPARK: Final = {
    "any table / scan": "frame_to_scan",
    "any table by pid / scan": "frame_by_pid_to_scan",
    "lag() / scan": "lag_to_scan",
    "anti join / scan": "anti_join_to_scan",
    "seconds of a bare read": "bare_seconds",
    "check / bare": "check_to_bare",
    "--local / bare": "local_to_bare",
    "lag() / bare": "lag_to_bare",
    "check / --local": "check_to_local",
    "seconds of a plain replay": "plain_seconds",
    "by order / plain": "by_order_to_plain",
    "by column / plain": "by_column_to_plain",
    "bytes spilled": "spilled_bytes",
    "MiB of the driver's heap": "driver_heap_peak_mib",
    "of an executor's": "executor_heap_peak_mib",
}
"""Figures that few of its arms have."""


def _spark(lines: Lines, arm: str) -> Sequence[str | Spread | None]:
    names = "check_seconds", "scan_seconds", "check_to_scan"
    also = ((name, lines.spread(arm, figure)) for name, figure in _ALSO_OF_SPARK.items())
    shown = ", ".join(f"{name} {cell(spread)}" for name, spread in also if spread)
    return arm, *(lines.spread(arm, name) for name in names), shown


_COMPARISON_UNITS: Final = (
    "CPU in microseconds per order, of all processes and of the producer; log bytes per order."
)

_SECTIONS: Final = {
    "comparison": _Section(
        (
            "rival, batch",
            "orders/s",
            "orderchain / it",
            *(f"{kind} / it" for kind in KINDS if kind),
            "CPU",
            "producer",
            "own share",
            "log bytes",
        ),
        _comparison,
        before=lambda _: iter((_COMPARISON_UNITS, "")),
    ),
    "batch_size": _Section(("batch", "rival", *(f"{stage}/s" for stage in STAGES)), _batch_size),
    "open_load": _Section(
        (
            "load, way",
            *_SHORT,
            *(f"undisturbed {one}" for one in _SHORT[:2]),
            "p99 of a repeat",
            "ack p99",
            "orders per commit",
            "producer",
            "receiver",
            "stalls, ms",
        ),
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
    "spark": _Section(("rows", "check, s", "scan, s", "check / scan", "also"), _spark),
}


# -- the tables of README.md -----------------------------------------------------------------------

README: Final = Path(__file__).parent.parent / "README.md"
BEGIN: Final = "<!-- benchmark: written by `python -m benchmarks.report` -->"
END: Final = "<!-- benchmark: end -->"

_RATE_HEADERS: Final = ("orders/s, median (lowest-highest)", "batch 100", "1,000", "5,000")
_LATENCY_HEADER: Final = "ms from due to handed on: p50, p99 (p99 without the disk's stalls)"
_SHOWN: Final = (
    "bare_pages", "engine", "kafka_transactions_frames", "event_sourcing", "common_way",
)  # fmt: skip


def _rates(lines: Lines) -> Iterator[Sequence[str]]:
    """Yield the rows of the table: rivals down, batch sizes across, orders per second."""
    for name in _SHOWN:
        sizes = [f"{name} {rows}" for rows in BATCH_ROWS]
        title = rival_of(name).title
        if name == "engine":
            yield f"**{title}**", *(cell(lines.spread(arm, RATE)) for arm in sizes)
            in_python = [cell(lines.spread(f"{arm} {IN_PYTHON}", RATE)) for arm in sizes]
            if any(text != "-" for text in in_python):
                yield f"{title}, {IN_PYTHON}", *in_python
            sizes = [f"{arm} {NOT_COMPARED}" for arm in sizes]
            title += f", {NOT_COMPARED}"
        if name == "common_way":
            sizes[1] = f"{name} {COMMON_ROWS}"
            title += f", {COMMON_ROWS} a transaction"
        cells = [cell(lines.spread(arm, RATE)) for arm in sizes]
        if any(text != "-" for text in cells):
            yield title, *cells


def _latencies(lines: Lines) -> Iterator[Sequence[str]]:
    """Yield the rows of the second table: ways down, fixed rates across, milliseconds."""
    for way in (way for way in WAYS if IN_PYTHON not in way):
        cells = [_latency(lines, rate_name(rate, way)) for rate in RATES]
        if any(text != "-" for text in cells):
            title = way.replace("engine", rival_of("engine").title)
            yield f"**{title}**" if way == "engine" else title, *cells


def _latency(lines: Lines, arm: str) -> str:
    every, free = (lines.percentiles(arm, f"{kind}histogram") for kind in ("", "undisturbed_"))
    if every is None:
        return "-"
    shown = f"{number(every['p50'])}, {number(every['p99'])}"
    return f"{shown} ({number(free['p99'])})" if free and free["count"] else shown


def with_tables(text: str, comparison: Lines, open_load: Lines) -> str:
    """Return `text` with the tables of README between its marks. Raises ValueError without them."""
    shown = [*table(_RATE_HEADERS, _rates(comparison))]
    if latencies := list(_latencies(open_load)):
        shown += ["", *table((_LATENCY_HEADER, *(f"{rate:,}/s" for rate in RATES)), latencies)]
    return with_lines(text, BEGIN, END, shown)


def main() -> None:
    """Write README.md."""
    try:
        lines = _saved(RESULTS, ("comparison", "open_load"))
    except RefusedError as error:
        sys.exit(str(error))
    text = README.read_text(encoding="utf-8")
    found = (lines.get(name, Lines(())) for name in ("comparison", "open_load"))
    README.write_text(with_tables(text, *found), encoding="utf-8")


if __name__ == "__main__":
    main()
