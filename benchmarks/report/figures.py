"""The figures, each as SVG and PNG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.open_load import FIXED_ROWS, SHARES_PERCENT, arm_name
from benchmarks.questions import BATCH_ROWS, FAST, STAGES
from benchmarks.rivals import rival_of
from benchmarks.spreads import PROCESSES, per_million

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.spreads import Lines, Spread

_COLOURS = {
    "engine": "#0b6e4f",
    "bare_pages": "#5c677d",
    "bare_pipe": "#a9b4c6",
    "kafka_transactions_events": "#d1495b",
    "kafka_transactions_frames": "#edae49",
    "common_way": "#6d597a",
    "event_sourcing": "#3d5a80",
    "nats_jetstream": "#98c1d9",
}
_DPI = 130


def draw_figures(folder: Path, lines: Mapping[str, Lines]) -> list[Path]:
    """Draw what there are lines for; return the files."""
    mpl.rcParams.update({"svg.hashsalt": "orderchain", "font.size": 10, "axes.axisbelow": True})
    written: list[Path] = []
    for name, draw in _DRAWN.items():
        if name in lines and lines[name].arms:
            figure = draw(lines[name])
            for kind in ("svg", "png"):
                path = folder / f"{name}.{kind}"
                # No date in the file: the same figures are the same bytes.
                metadata = {"Date": None} if kind == "svg" else {"Software": None}
                figure.savefig(path, dpi=_DPI, metadata=metadata)
                written.append(path)
    return written


def _new(
    title: str, width: float = 8.0, height: float = 4.4, columns: int = 1
) -> tuple[Figure, Any]:
    figure: Figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12)
    axes = figure.subplots(1, columns)
    each: Sequence[Any] = axes if columns > 1 else [axes]
    for one in each:
        one.grid(axis="y", color="#dddddd", linewidth=0.7)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _bar(axes: Any, at: float, spread: Spread, width: float, colour: str, label: str) -> None:  # noqa: ANN401
    """Draw a median as a bar, with a whisker from the lowest to the highest."""
    error = [[spread.median - spread.low], [spread.high - spread.median]]
    axes.bar(at, spread.median, width, color=colour, label=label, yerr=error,
             error_kw={"elinewidth": 1, "ecolor": "#333333", "capsize": 2})  # fmt: skip


def _legend(axes: Any, *, on: Any = None, **how: object) -> None:  # noqa: ANN401
    """Show every label of `axes` once, in them or on the figure that is given."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    (on or axes).legend(once.values(), once.keys(), frameon=False, fontsize=9, **how)


def _comparison(lines: Lines) -> Figure:
    figure, axes = _new("From one process to another, in order, with none missing")
    groups: list[tuple[str, list[tuple[str, str]]]] = [
        (f"batch {rows:,}", [(rival, f"{rival} {rows}") for rival in FAST]) for rows in BATCH_ROWS
    ]
    groups.append(
        (
            "what is common\n(500; 1,000; 1,000)",
            [
                ("common_way", "common_way 500"),
                ("event_sourcing", "event_sourcing 1000"),
                ("nats_jetstream", "nats_jetstream 1000"),
            ],
        )
    )
    for index, (_, members) in enumerate(groups):
        for place, (rival, arm) in enumerate(members):
            spread = lines.spread(arm, "delivered_per_second")
            if spread is not None:
                at = index + (place - (len(members) - 1) / 2) * 0.17
                _bar(axes, at, spread, 0.15, _COLOURS[rival], rival_of(rival).title)
    axes.set_xticks(range(len(groups)), [title for title, _ in groups])
    axes.yaxis.set_major_formatter(_thousands)
    axes.set_ylabel("orders/s")
    _legend(axes, loc="upper left")
    return figure


def _thousands(value: float, _: int) -> str:
    return f"{value / 1e3:g}k"


def _batch_size(lines: Lines) -> Figure:
    figure, columns = _new("Batch size", width=11, columns=3)
    sizes = sorted({int(arm.split(" ")[1]) for arm in lines.arms})
    for axes, (stage, done) in zip(columns, STAGES.items(), strict=True):
        for rival in ("bare_pages", "bare_pipe", "engine"):
            spreads = {
                size: spread
                for size in sizes
                if (spread := lines.spread(f"{rival} {size} {stage}", f"{done}_per_second"))
            }
            _line(axes, spreads, _COLOURS[rival], rival_of(rival).title)
        axes.set(xscale="log", yscale="log", title=done, xlabel="orders a batch")
    columns[0].set_ylabel("orders/s")
    _legend(columns[0])
    return figure


def _line(axes: Any, spreads: Mapping[int, Spread], colour: str, label: str) -> None:  # noqa: ANN401
    """Draw medians as a line, from the lowest to the highest as a band."""
    if not spreads:
        return
    at = list(spreads)
    axes.plot(at, [spread.median for spread in spreads.values()], "o-", color=colour, label=label)
    lows = [spread.low for spread in spreads.values()]
    highs = [spread.high for spread in spreads.values()]
    axes.fill_between(at, lows, highs, color=colour, alpha=0.15, linewidth=0)


def _open_load(lines: Lines) -> Figure:
    figure, columns = _new("Latency under open load, from the intended time", width=11, columns=3)
    colours = ("#0b6e4f", "#3d5a80", "#d1495b")
    for axes, percentile in zip(columns, ("p50", "p99", "p99.9"), strict=True):
        for colour, size in zip(colours, (0, *FIXED_ROWS), strict=True):
            found = {
                share: percentiles[percentile]
                for share in SHARES_PERCENT
                if (percentiles := lines.percentiles(arm_name(share, size))) is not None
            }
            label = "self-clocking" if size == 0 else f"batches of {size:,}"
            axes.plot(list(found), list(found.values()), "o-", color=colour, label=label)
        axes.set(title=percentile, xlabel="load, % of the maximum", yscale="log")
    columns[0].set_ylabel("ms")
    # No corner of these is free of lines.
    _legend(columns[0], on=figure, loc="outside lower center", ncols=1 + len(FIXED_ROWS))
    return figure


def _switches(lines: Lines) -> Figure:
    figure, axes = _new("Keys and seal, batch 1,000, end to end")
    arms = [arm for arm in lines.arms if arm.endswith(", deliver")]
    for index, arm in enumerate(arms):
        spread = lines.spread(arm, "delivered_per_second")
        if spread is not None:
            _bar(axes, index, spread, 0.6, _COLOURS["engine"], "orderchain")
    axes.set_xticks(range(len(arms)), [arm.partition(",")[0] for arm in arms])
    axes.yaxis.set_major_formatter(_thousands)
    axes.set_ylabel("orders/s")
    return figure


def _cpu(lines: Lines) -> Figure:
    figure, axes = _new("CPU seconds per million orders")
    colours = ("#0b6e4f", "#73c2a3", "#3d5a80", "#edae49")
    for index, arm in enumerate(lines.arms):
        below = 0.0
        for colour, process in zip(colours, PROCESSES, strict=True):
            spread = lines.spread(arm, per_million(process))
            if spread is not None:
                axes.bar(index, spread.median, 0.6, bottom=below, color=colour, label=process)
                below += spread.median
    axes.set_xticks(
        range(len(lines.arms)), [arm.replace("_", " ").replace(" ", "\n") for arm in lines.arms]
    )
    axes.set_ylabel("seconds")
    _legend(axes)
    return figure


def _scale(lines: Lines) -> Figure:
    figure, (rates, memory) = _new("Long chains", width=9, columns=2)
    rows = {arm: int(arm.split(" ")[0]) for arm in lines.arms}

    def spreads(figure_name: str) -> dict[int, Spread]:
        return {
            count: spread
            for arm, count in rows.items()
            if (spread := lines.spread(arm, figure_name)) is not None
        }

    _line(rates, spreads("delivered_per_second"), _COLOURS["engine"], "end to end")
    rates.set(xscale="log", ylim=(0, None), xlabel="rows in the chain", ylabel="orders/s")
    rates.yaxis.set_major_formatter(_thousands)
    _line(memory, spreads("producer_memory_mib"), _COLOURS["engine"], "sequencer")
    _line(memory, spreads("receiver_memory_mib"), _COLOURS["event_sourcing"], "receiver")
    memory.set(xscale="log", ylim=(0, None), xlabel="rows in the chain", ylabel="MiB resident")
    _legend(memory)
    return figure


_DRAWN: dict[str, Callable[[Lines], Figure]] = {
    "comparison": _comparison,
    "batch_size": _batch_size,
    "open_load": _open_load,
    "switches": _switches,
    "cpu": _cpu,
    "scale": _scale,
}
