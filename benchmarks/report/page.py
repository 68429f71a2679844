"""Table and figures from the saved lines: `table.md`, and each figure as SVG and PNG.

python -m benchmarks --report [--output FOLDER]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from benchmarks.open_load import FIXED_ROWS, SHARES_PERCENT, arm_name
from benchmarks.programs import PROGRAMS, figures_of, last_result
from benchmarks.questions import COMMON_ROWS, NAMES, STAGES, question_of
from benchmarks.report.figures import draw_figures
from benchmarks.report.goals import Goal, goals, rounds_against_best
from benchmarks.session import CONDITIONS, Conditions, read_lines
from benchmarks.spreads import (
    PROCESSES,
    Lines,
    as_spread,
    cell,
    number,
    own_share,
    per_million,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

TABLE = "table.md"
_MACHINE = ("processor", "cores", "memory_gib", "kernel")
"""What distinguishes one machine from another."""

_DELIVERED = "delivered_per_second"
_BASES = {"bare_pages": "/ bare pipe of pages", "bare_pipe": "/ a row per order"}
"""What rates are compared with, with the titles of the columns."""

_PERCENTILES = ("p50", "p90", "p99", "p99.9", "max")


def write_report(folder: Path) -> list[Path]:
    """Write table and figures of what is saved in `folder`; return what was written."""
    found = {name: Lines(read_lines(folder / f"{name}.jsonl")) for name in NAMES}
    lines = {name: these for name, these in found.items() if these.all}
    conditions = _conditions(folder, lines)
    text = "\n".join(_page(folder, lines, conditions)) + "\n"
    path = folder / TABLE
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return [path, *draw_figures(folder, lines)]


def _conditions(folder: Path, lines: Mapping[str, Lines]) -> list[Conditions]:
    """Return the conditions of every run that has lines here."""
    path = folder / CONDITIONS
    runs = {line.run for these in lines.values() for line in these.all}
    texts = path.read_bytes().splitlines() if path.is_file() else []
    found = [msgspec.json.decode(text, type=Conditions) for text in texts]
    return [conditions for conditions in found if conditions.run in runs]


def _page(
    folder: Path, lines: Mapping[str, Lines], conditions: Sequence[Conditions]
) -> Iterator[str]:
    yield "# Results"
    yield ""
    yield "Made by `make bench`; what each means stands in [the page](../../docs/benchmarks.md)."
    yield ""
    yield from _told_conditions(conditions)
    results = {name: found for name in PROGRAMS if (found := last_result(name, folder))}
    yield from _goals(goals(lines, results))
    for name, these in lines.items():
        yield f"## {question_of(name).title}"
        yield ""
        yield from _SECTIONS[name](these)
        yield from _left_out(these)
        yield ""
    for name, result in results.items():
        yield f"## {PROGRAMS[name].title}"
        yield ""
        yield f"Commit {result['host']['commit']}, `python -m benchmarks.programs {name}`."
        yield ""
        rows = [(where, cell(as_spread(found))) for where, found in figures_of(result)]
        yield from table(("figure", "median (lowest to highest)"), rows)
        yield ""


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


def _goals(found: Sequence[Goal]) -> Iterator[str]:
    yield "## Goals"
    yield ""
    rows = [
        (
            goal.text,
            f"{goal.bound} {number(goal.target)}{goal.unit}",
            cell(goal.measured, goal.unit),
            {True: "yes", False: "**no**", None: "-"}[goal.is_reached],
        )
        for goal in found
    ]
    yield from table(("figure", "goal", "measured", "reached"), rows)
    yield ""


# -- a section per question ------------------------------------------------------------------------


def _comparison(lines: Lines) -> Iterator[str]:
    rows = []
    for arm in lines.arms:
        figure = "persisted_per_second" if arm.endswith("persisting") else "delivered_per_second"
        rows.append(
            (
                arm.replace("_", " "),
                cell(lines.spread(arm, figure)),
                *(
                    cell(lines.ratio(arm, _arm_of(base, arm).removesuffix(" with keys"), figure))
                    for base in _BASES
                ),
                cell(lines.spread(arm, own_share) if _has_receiver(arm) else None),
            )
        )
    yield from table(("rival, batch", "orders/s", *_BASES.values(), "own share of CPU"), rows)
    common = lines.ratio(f"engine {COMMON_ROWS}", f"common_way {COMMON_ROWS}", _DELIVERED)
    yield ""
    yield f"Against the common way, batch {COMMON_ROWS}: {cell(common)}. Each of its statements"
    yield "waits for the loopback, so this is a figure of the machine more than of either."


def _arm_of(rival: str, arm: str) -> str:
    """Return the name of the arm of `rival` that is run as `arm` is."""
    return arm.replace(arm.partition(" ")[0], rival)


def _has_receiver(arm: str) -> bool:
    return not arm.endswith("persisting")


def _batch_size(lines: Lines) -> Iterator[str]:
    rows = []
    for arm in lines.arms:
        rival, size, stage = arm.split(" ")
        figure = f"{STAGES[stage]}_per_second"
        rows.append(
            (
                f"{int(size):,}",
                stage,
                rival.replace("_", " "),
                cell(lines.spread(arm, figure)),
                *(cell(lines.ratio(arm, _arm_of(base, arm), figure)) for base in _BASES),
            )
        )
    yield from table(("batch", "stage", "rival", "orders/s", *_BASES.values()), rows)


def _switches(lines: Lines) -> Iterator[str]:
    rows = []
    for arm in lines.arms:
        stage = arm.partition(", ")[2]
        figure = "persisted_per_second" if stage == "persist" else "delivered_per_second"
        ratio = lines.ratio(arm, f"neither, {stage}", figure)
        rows.append((arm, cell(lines.spread(arm, figure)), cell(ratio)))
    yield from table(("on", "orders/s", "/ neither"), rows)


def _cpu(lines: Lines) -> Iterator[str]:
    rows = [
        (
            arm.replace("_", " "),
            *(cell(lines.spread(arm, per_million(process))) for process in PROCESSES),
            cell(lines.spread(arm, per_million(*PROCESSES))),
            cell(lines.spread(arm, own_share)),
        )
        for arm in lines.arms
    ]
    yield "CPU seconds per million orders."
    yield ""
    yield from table(("rival, batch", *PROCESSES, "all", "own share"), rows)


def _open_load(lines: Lines) -> Iterator[str]:
    maximum = cell(lines.spread("maximum", "delivered_per_second"))
    yield f"Maximum: {maximum} orders/s. Milliseconds from the intended time of an order until it"
    yield "was handed on; percentiles over all repeats together, and beside them how the p99 of one"
    yield "repeat moved."
    yield ""
    rows = []
    for share in SHARES_PERCENT:
        for size in (0, *FIXED_ROWS):
            arm = arm_name(share, size)
            found, ack = lines.percentiles(arm), lines.percentiles(arm, "ack_histogram")
            if found is not None and ack is not None:
                cells = [number(found[percentile]) for percentile in _PERCENTILES]
                moved = cell(lines.percentile_spread(arm, "p99"))
                rows.append((arm, *cells, number(ack["p50"]), number(ack["p99"]), moved))
    headers = ("load, policy", *_PERCENTILES, "ack p50", "ack p99", "p99 of a repeat")
    yield from table(headers, rows)
    rounds = [
        (f"{share} %", cell(found))
        for share in SHARES_PERCENT
        if (found := rounds_against_best(lines, share, "p99")) is not None
    ]
    if rounds:
        yield ""
        yield from table(("load", "p99, self-clocking / best fixed size of a round"), rounds)
    for name, title in (
        ("commit_histogram", "one commit behind the other"),
        ("send_histogram", "one acked send behind the other"),
        ("due_commit_histogram", "commits on a schedule, from when each was due"),
        ("due_send_histogram", "acked sends on a schedule, from when each was due"),
    ):
        if alone := lines.percentiles("floor", name):
            told = ", ".join(f"{p} {number(alone[p])}" for p in _PERCENTILES)
            yield ""
            yield f"Alone on the machine, {title}: {told} ms."


def _scale(lines: Lines) -> Iterator[str]:
    rows = [
        (
            f"{int(arm.split(' ')[0]):,}",
            cell(lines.spread(arm, "delivered_per_second")),
            cell(lines.ratio(arm, lines.arms[0], "delivered_per_second")),
            cell(lines.spread(arm, "producer_memory_mib")),
            cell(lines.spread(arm, "receiver_memory_mib")),
        )
        for arm in lines.arms
    ]
    yield from table(
        ("rows before", "orders/s", "/ shortest", "sequencer MiB", "receiver MiB"), rows
    )


def _checkpoint(lines: Lines) -> Iterator[str]:
    rows = [
        (
            arm.replace("_", " "),
            cell(lines.spread(arm, "delivered_per_second")),
            cell(lines.ratio(arm, arm.replace("long", "short"), "delivered_per_second")),
            cell(lines.spread(arm, "checkpoints")),
            cell(lines.spread(arm, "wal_mib")),
        )
        for arm in lines.arms
    ]
    yield from table(("run", "orders/s", "/ short", "checkpoints", "WAL MiB"), rows)


def _verifier(lines: Lines) -> Iterator[str]:
    rows = [
        (
            f"{int(arm.split(' ')[0]):,}",
            cell(lines.spread(arm, "verify_seconds")),
            cell(lines.spread(arm, "rows_per_second")),
        )
        for arm in lines.arms
    ]
    yield from table(("rows", "seconds, Spark's start included", "rows/s"), rows)


_SECTIONS = {
    "comparison": _comparison,
    "batch_size": _batch_size,
    "switches": _switches,
    "cpu": _cpu,
    "open_load": _open_load,
    "checkpoint": _checkpoint,
    "scale": _scale,
    "verifier": _verifier,
}


def _left_out(lines: Lines) -> Iterator[str]:
    """Yield what has no figure, and why."""
    for arm, reason in lines.skipped.items():
        yield ""
        yield f"Skipped: {arm.replace('_', ' ')}: {reason}."
    for line in lines.failed:
        yield ""
        yield f"**No figure**: {line.arm}, repeat {line.repeat + 1}: {line.failure}"
