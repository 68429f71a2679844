"""Benchmarks of one part alone, which are programs of their own: each adds a line to its results.

They reset the stack, so they run after everything else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from benchmarks.ends import RunFailed
from benchmarks.host import RESULTS, describe_host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROOT = Path(__file__).parent.parent


class Program(Struct, frozen=True):
    """A benchmark with a `main` of its own."""

    title: str
    arguments: tuple[str, ...]
    seconds: float


PROGRAMS = {
    "commit_path": Program("The commit path, and pages against a row per order", (), 300),
    "key_kinds": Program("What keys cost, by their kind", (), 240),
    "one_by_one": Program("Orders one by one, and one alone", (), 90),
    "receiver_core": Program("The receiver's core, without a network", (), 120),
    "fill": Program("Gap fill by the size of the gap and of the table", (), 240),
    "large_gap": Program("What a gap of a million rows takes of memory", (), 60),
    "full_rate": Program("A minute at the highest rate", (), 240),
    "loss": Program("The rate end to end while frames are lost", (), 120),
    "catch_up": Program("Catching up after a pause", (), 120),
    "outbox_cycle": Program("A full cycle of the outbox beside the row-by-row way", (), 240),
    "outbox_sweep": Program("The outbox's sweep beside its history", (), 120),
    "outbox_latency": Program("From a business commit to the handler, at a steady load", (), 180),
    "outbox_delayed_check": Program("Mode 5 of the outbox beside mode 3", (), 150),
    "spark_check": Program("The verifier's check beside a scan, lag() and an anti join", (), 420),
    "spark_scale": Program("The check of ten times the rows, in executors of 2 GB", (), 300),
    "spark_jdbc": Program("The check of a database beside a bare read by JDBC", (), 300),
}


def run_program(name: str, environment: Mapping[str, str]) -> None:
    """Run a program to its end, its talk on stderr. Raises RunFailed."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *PROGRAMS[name].arguments],
        cwd=_ROOT,
        env=dict(environment),
        stdout=sys.stderr,
        check=False,
    )
    if done.returncode:
        raise RunFailed(f"{name} ended with {done.returncode}")


def is_done(name: str) -> bool:
    """Return whether the last result of a program is of this very commit."""
    found = last_result(name)
    return found is not None and found["host"]["commit"] == describe_host()["commit"]


def last_result(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """Return the last line that a program has added to its results."""
    path = folder / f"{name}.jsonl"
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return msgspec.json.decode(lines[-1]) if lines else None


def figures_of(result: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """Return every figure with a spread in a result, by its place."""
    return list(_walk(result, ()))


def _walk(value: object, path: Sequence[str]) -> list[tuple[str, dict[str, float]]]:
    if not isinstance(value, dict):
        return []
    found: list[tuple[str, dict[str, float]]] = []
    if {"median", "min", "max"} <= value.keys():
        found.append((" / ".join(path), value))
    for name, inner in value.items():
        found += _walk(inner, (*path, str(name)))
    return found
