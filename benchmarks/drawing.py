"""The figures of the report, each an SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.questions import BARE, BATCH_ROWS, FAST, STAGES
from benchmarks.rivals.rival import rival_of
from benchmarks.runs.open_load import RATES, WAYS, rate_name
from benchmarks.spreads import RATE, Lines, Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

_COLOURS: Final = {
    "engine": "#0b6e4f",
    "engine_no_broker": "#2a9d8f",
    "bare_pages": "#5c677d",
    "bare_pipe": "#a9b4c6",
    "kafka_transactions_events": "#d1495b",
    "kafka_transactions_frames": "#edae49",
    "common_way": "#6d597a",
    "event_sourcing": "#3d5a80",
}


def draw_figures(folder: Path, lines: Mapping[str, Lines]) -> list[Path]:
    """Draw what there are lines for; return the files."""
    mpl.rcParams.update({"svg.hashsalt": "orderchain", "font.size": 10, "axes.axisbelow": True})
    written: list[Path] = []
    for name, draw in _DRAWN.items():
        if name in lines and lines[name].arms:
            path = folder / f"{name}.svg"
            # No date in the file: the same figures are the same bytes.
            draw(lines[name]).savefig(path, metadata={"Date": None})
            written.append(path)
    return written


def _new(title: str, width: float = 8.0, columns: int = 1, **axes: Any) -> tuple[Figure, Any]:  # noqa: ANN401
    """Return a figure and its axes, one or several, all with the same settings."""
    figure: Figure = Figure(figsize=(width, 4.4), layout="constrained")
    figure.suptitle(title, fontsize=12)
    found = figure.subplots(1, columns, squeeze=False)[0]
    for one in found:
        one.grid(axis="y", color="#dddddd", linewidth=0.7)
        one.spines[["top", "right"]].set_visible(False)
        one.set(**axes)
    return figure, found if columns > 1 else found[0]


def _line(axes: Any, spreads: Iterable[tuple[int, Spread | None]], colour: str, label: str) -> None:  # noqa: ANN401
    """Draw medians as a line, from the lowest to the highest as a band."""
    found = {at: spread for at, spread in spreads if spread is not None}
    if found:
        medians = [spread.median for spread in found.values()]
        axes.plot(list(found), medians, "o-", color=colour, label=label)
        lows, highs = zip(*((spread.low, spread.high) for spread in found.values()), strict=True)
        axes.fill_between(list(found), lows, highs, color=colour, alpha=0.15, linewidth=0)


def _thousands(value: float, _: int) -> str:
    return f"{value / 1e3:g}k"


def _legend(axes: Any, *, on: Any = None, **how: object) -> None:  # noqa: ANN401
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    (on or axes).legend(once.values(), once.keys(), frameon=False, fontsize=9, **how)


def _draw_comparison(lines: Lines) -> Figure:
    title = "From one process to another, in order, with none missing"
    figure, axes = _new(title, ylabel="orders/s")
    groups = {f"batch {rows:,}": [(rival, rows) for rival in FAST] for rows in BATCH_ROWS}
    common = [("common_way", 500), ("event_sourcing", 1000)]
    groups["what is common\n(500; 1,000; 1,000)"] = common
    for index, members in enumerate(groups.values()):
        for place, (rival, rows) in enumerate(members):
            at = index + (place - (len(members) - 1) / 2) * 0.17
            if spread := lines.spread(f"{rival} {rows}", RATE):
                axes.bar(
                    at,
                    spread.median,
                    0.15,
                    color=_COLOURS[rival],
                    label=rival_of(rival).title,
                    # A whisker from the lowest to the highest.
                    yerr=[[spread.median - spread.low], [spread.high - spread.median]],
                    error_kw={"elinewidth": 1, "ecolor": "#333333", "capsize": 2},
                )
    axes.set_xticks(range(len(groups)), list(groups))
    axes.yaxis.set_major_formatter(_thousands)
    _legend(axes, loc="upper left")
    return figure


def _draw_batch_size(lines: Lines) -> Figure:
    scales = {"xscale": "log", "yscale": "log", "xlabel": "orders per batch"}
    figure, columns = _new("Batch size", width=11, columns=3, **scales)
    sizes = sorted({int(arm.split(" ")[1]) for arm in lines.arms})
    for axes, (stage, done) in zip(columns, STAGES.items(), strict=True):
        for rival in (*BARE, "engine"):
            figure_name = f"{done}_per_second"
            spreads = [(n, lines.spread(f"{rival} {n} {stage}", figure_name)) for n in sizes]
            _line(axes, spreads, _COLOURS[rival], rival_of(rival).title)
        axes.set(title=done)
    columns[0].set_ylabel("orders/s")
    _legend(columns[0])
    return figure


def _draw_open_load(lines: Lines) -> Figure:
    title = "Latency under open load, from when an order was due"
    scales = {"xlabel": "orders/s", "xscale": "log", "yscale": "log"}
    figure, columns = _new(title, width=11, columns=3, **scales)
    drawn = {
        "p50": "histogram",
        "p99": "histogram",
        "p99 without the disk's stalls": "undisturbed_histogram",
    }
    for axes, (name, histogram) in zip(columns, drawn.items(), strict=True):
        for way, colour in zip(WAYS, _WAY_COLOURS, strict=True):
            found = {
                rate: percentiles[name.partition(" ")[0]]
                for rate in RATES
                if (percentiles := lines.percentiles(rate_name(rate, way), histogram)) is not None
            }
            axes.plot(list(found), list(found.values()), "o-", color=_COLOURS[colour], label=way)
        axes.set(title=name)
    columns[0].set_ylabel("ms")
    # No corner of these is free of lines.
    _legend(columns[0], on=figure, loc="outside lower center", ncols=3)
    return figure


_WAY_COLOURS: Final = (
    "engine", "event_sourcing", "engine_no_broker", "common_way", "kafka_transactions_events",
    "bare_pages", "kafka_transactions_frames",
)  # fmt: skip
"""Rivals whose colours the ways have."""


def _draw_scale(lines: Lines) -> Figure:
    scales = {"xscale": "log", "xlabel": "rows in the chain"}
    figure, (rates, memory) = _new("Long chains", width=9, columns=2, **scales)
    for axes, name, rival, label in (
        (rates, RATE, "engine", "end to end"),
        (memory, "producer_memory_mib", "engine", "sequencer"),
        (memory, "receiver_memory_mib", "event_sourcing", "receiver"),
    ):
        spreads = [(int(arm.split(" ")[0]), lines.spread(arm, name)) for arm in lines.arms]
        _line(axes, spreads, _COLOURS[rival], label)
    rates.set(ylim=(0, None), ylabel="orders/s")
    rates.yaxis.set_major_formatter(_thousands)
    memory.set(ylim=(0, None), ylabel="MiB resident")
    _legend(memory)
    return figure


_DRAWN: Final[dict[str, Callable[[Lines], Figure]]] = {
    "comparison": _draw_comparison,
    "batch_size": _draw_batch_size,
    "open_load": _draw_open_load,
    "scale": _draw_scale,
}
