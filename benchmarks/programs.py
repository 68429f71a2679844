"""Benchmarks of one part alone, which reset the stack: they run after everything else.

Each adds a line to its results:

    python -m benchmarks.programs fill [--repeats 7] [--dry]
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from functools import partial
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop
from msgspec import Struct

from benchmarks.chains import benchmark_stack, open_site
from benchmarks.host import RESULTS, describe_host
from benchmarks.spreads import as_spread, cell
from orderchain.monitoring import calm_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class Program(Struct, frozen=True):
    """A function of a module of `benchmarks.parts`: it gets a site and options, returns figures."""

    title: str
    module: str
    seconds: float
    options: dict[str, int | float]
    """With their defaults."""
    has_site: bool = True
    """Servers are started for it."""
    is_flat: bool = False
    """Its figures stand beside its options in the line; and Python's collector is as usual."""
    least: dict[str, int] = {}
    """The least values that give a figure; of other options every number above 0 may."""


PROGRAMS = {
    "commit_path": Program(
        "The commit path, and pages against a row per order",
        "sequencing", 300, {"repeats": 5, "orders": 200_000},
    ),
    "key_kinds": Program(
        "What keys cost, by their kind",
        "sequencing", 240, {"repeats": 5, "orders": 200_000, "present": 3_000_000},
    ),
    "one_by_one": Program(
        "Orders one by one, and one alone", "sequencing", 90, {"repeats": 5, "orders": 200_000}
    ),
    "receiver_core": Program(
        "The receiver's core, without a network",
        "receiving", 120, {"repeats": 15, "orders": 400_000}, has_site=False, is_flat=True,
    ),
    "fill": Program(
        "Gap fill by the size of the gap and of the table",
        "receiving", 240, {"repeats": 7, "largest": 10_000_000}, is_flat=True,
    ),
    "large_gap": Program(
        "What a gap of a million rows takes of memory",
        "impaired", 60, {"repeats": 5, "rows": 1_000_000}, is_flat=True,
    ),
    "full_rate": Program(
        "A minute at the highest rate", "impaired", 240, {"orders": 36_000_000}, is_flat=True,
        least={"orders": 1_000_000},  # memory is compared over rounds of half a million
    ),
    "loss": Program(
        "The rate end to end while frames are lost",
        "impaired", 120, {"repeats": 5, "orders": 200_000, "share": 0.05}, is_flat=True,
    ),
    "catch_up": Program(
        "Catching up after a pause",
        "impaired", 120, {"repeats": 5, "orders": 1_000_000, "arrivals": 40_000}, is_flat=True,
    ),
    "outbox_cycle": Program(
        "A full cycle of the outbox beside the row-by-row way",
        "outbox", 240, {"repeats": 3, "messages": 100_000, "rows": 1_500},
    ),
    "outbox_sweep": Program(
        "The outbox's sweep beside its history",
        "outbox", 120, {"repeats": 5, "finished": 1_000_000},
    ),
    "outbox_latency": Program(
        "From a business commit to the handler, at a steady load",
        "outbox", 180, {"repeats": 3, "seconds": 6, "rate": 1_000, "warm": 10},
    ),
    "outbox_delayed_check": Program(
        "Mode 5 of the outbox beside mode 3", "outbox", 150, {"repeats": 3, "messages": 60_000}
    ),
    "spark_check": Program(
        "The verifier's check beside a scan, lag() and an anti join",
        "spark", 420, {"repeats": 3, "rows": 50_000_000, "wide_rows": 5_000_000},
        has_site=False, is_flat=True,
    ),
    "spark_scale": Program(
        "The check of ten times the rows, in executors of 2 GB",
        "spark", 300, {"repeats": 5, "short": 10_000_000, "long": 100_000_000},
        has_site=False, is_flat=True,
    ),
    "spark_jdbc": Program(
        "The check of a database beside a bare read by JDBC",
        "spark", 300, {"repeats": 5, "rows": 10_000_000}, is_flat=True,
    ),
}  # fmt: skip


def is_done(name: str) -> bool:
    """Return whether the last result of a program is of this very commit."""
    found = last_result(name)
    return found is not None and found["host"]["commit"] == describe_host()["commit"]


def last_result(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """Return the last line that a program has added to its results."""
    path = folder / f"{name}.jsonl"
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return msgspec.json.decode(lines[-1]) if lines else None


def figures_of(value: object, *path: str) -> list[tuple[str, dict[str, float]]]:
    """Return every figure with a spread in a result, by its place."""
    if not isinstance(value, dict):
        return []
    is_spread = {"median", "min", "max"} <= value.keys()
    found = [(" / ".join(path), value)] if is_spread else []
    for name, inner in value.items():
        found += figures_of(inner, *path, str(name))
    return found


def save_result(name: str, measured: Mapping[str, Any], *, is_dry: bool) -> None:
    """Print every figure, and add a line to the results."""
    result = {"benchmark": name, "host": describe_host(), **measured}
    for where, found in figures_of(result):
        print(f"{where:70} {cell(as_spread(found))}", flush=True)
    if is_dry:
        return
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def _measured(measure: Callable[..., Any], *, has_site: bool) -> Any:  # noqa: ANN401 - figures
    """Run a program; servers are started, and stopped, only for one that needs them."""
    if not has_site:
        return uvloop.run(measure())
    stack = benchmark_stack()
    try:
        return uvloop.run(measure(open_site(stack)))
    finally:
        stack.down()


def _number(kind: type[int | float], least: int | None, text: str) -> int | float:
    """Return an option's value. Raises ArgumentTypeError: argparse makes it one line, and ends."""
    with suppress(ValueError):
        if 0 < (value := kind(text)) < inf and value >= (least or 0):
            return value
    expected = "a number above 0" if least is None else f"at least {least:,}"
    raise argparse.ArgumentTypeError(f"was {text!r}, expected {expected}")


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dry", action="store_true", help="print only")
    programs = parser.add_subparsers(dest="program", required=True)
    for name, program in PROGRAMS.items():
        its = programs.add_parser(name, help=program.title)
        for option, default in program.options.items():
            kind = partial(_number, type(default), program.least.get(option))
            its.add_argument(f"--{option.replace('_', '-')}", type=kind, default=default)
    arguments = parser.parse_args()
    program = PROGRAMS[arguments.program]
    measure = getattr(import_module(f"benchmarks.parts.{program.module}"), arguments.program)
    settings = {option: getattr(arguments, option) for option in program.options}
    if not program.is_flat:
        calm_collector()
    found = _measured(partial(measure, **settings), has_site=program.has_site)
    whole = settings | found if program.is_flat else {"settings": settings, "figures": found}
    save_result(arguments.program, whole, is_dry=arguments.dry)


if __name__ == "__main__":
    main()
