"""Is this checkout faster or slower than another one of the same project?

Arms of the benchmark, alternately in both checkouts. Each has its own code, its own virtual
environment, and a PostgreSQL and a Kafka of its own, so that engines can be compared that store or
send something else.

    python -m benchmarks.two_checkouts ../before [--arm "engine 1000"] [--repeats 5]

The other checkout needs `make setup` first. The arms are those of one question (`--question`, by
default comparison). `--arm "NAME=OTHER"` names an arm that is called OTHER there. A figure may be
a percentile, `p50` or `p99`, of an arm of `open_load`, whose loads are shares of `--maximum`: the
same rate in both.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.processes import ROOT, End
from benchmarks.spreads import cell, merged, spread_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_ARMS: Final = ("engine 100", "engine 1000", "engine 5000")
_CLOSE_SECONDS: Final = 120.0
"""The servers of a checkout stop."""

# Runs in the interpreter and the folder of either checkout, so it may use only what both have: in
# every version, these two modules have these names.
_CHILD: Final = """
import asyncio, json, os, sys, types
from benchmarks.chains import MAX_WAL_SIZE_MB, open_site, tune, write_log_files
from benchmarks.questions import Load, Scope, question_of, run_load
from local_stack import LocalStack
from local_stack.folders import default_directory

name, question, maximum = sys.argv[1:]
figures = {"delivered_per_second": float(maximum)}
earlier = [types.SimpleNamespace(arm="maximum", repeat=0, figures=figures)]
folder = default_directory(os.environ)
stack = LocalStack(folder.with_name(f"{folder.name}-benchmarks-{name}"))
site = open_site(stack)
try:
    asyncio.run(tune(site))
    asyncio.run(write_log_files(site, MAX_WAL_SIZE_MB))
    for rows in (100, 1_000):
        asyncio.run(run_load(site, Load(rival="engine", orders=100_000, batch_rows=rows)))
    arms = {arm.name: arm for arm in question_of(question).arms(Scope())}
    print(json.dumps(sorted(arms)), flush=True)
    for line in sys.stdin:
        arm = arms[line.strip()]
        print(json.dumps(asyncio.run(question_of(question).run(site, arm, earlier))), flush=True)
finally:
    stack.down()
"""


def _checkout(root: Path, name: str, question: str, maximum: float) -> End:
    """Return a process in the folder of a checkout, which runs arms one at a time."""
    command = root / ".venv/bin/python", "-c", _CHILD, name, question, str(maximum)
    end = End(*command, name=name, keeps_errors=False, root=root)
    end.close_seconds = _CLOSE_SECONDS
    return end


async def measure(
    other: Path,
    question: str,
    arms: Sequence[str],
    repeats: int,
    figures: Sequence[str],
    maximum: float,
) -> None:
    """Run every arm in both checkouts alternately, and print what was found."""
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(_checkout(ROOT, "here", question, maximum))
        names = await here.answer()
        there = await stack.enter_async_context(_checkout(other, "there", question, maximum))
        others = await there.answer()
        for arm in arms:
            ours, _, theirs = arm.partition("=")
            sides = (here, names, ours), (there, others, theirs or ours)
            for _, known, name in sides:
                if name not in known:
                    raise SystemExit(f"--arm was {name!r}, expected one of {', '.join(known)}")

            answers: list[list[dict[str, Any]]] = []
            for _ in range(repeats + 1):
                answers.append([])
                for checkout, _, name in sides:
                    await checkout.tell(name.encode())
                    answers[-1].append(await checkout.answer())
                print(arm, *(f"{_value(one, figures[0]):,.4g}" for one in answers[-1]), flush=True)
            for figure in figures:
                counted = zip(*answers[1:], strict=True)  # the first round has warmed up
                values = [[_value(one, figure) for one in its] for its in counted]
                ratios = [one / other for one, other in zip(*values, strict=True)]
                named = {"here": values[0], "there": values[1], "here / there": ratios}
                shown = [f"{name} {cell(spread_of(each))}" for name, each in named.items()]
                print(f"{arm}, {figure}:", ", ".join(shown), flush=True)


def _value(figures: dict[str, Any], figure: str) -> float:
    if figure in figures:
        return float(figures[figure])
    if "histogram" not in figures:
        raise SystemExit(f"--figure was {figure!r}, expected one of {', '.join(figures)}")
    return merged([figures["histogram"]])[figure]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("other", type=Path)
    parser.add_argument("--question", default="comparison")
    parser.add_argument("--arm", action="append")
    parser.add_argument("--figure", action="append", help="may be given several times")
    parser.add_argument("--maximum", type=float, default=400_000.0, metavar="ORDERS_PER_SECOND")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    other = arguments.other.resolve()
    if not (other / ".venv/bin/python").exists():
        sys.exit(f"other was {str(other)!r}, expected a checkout after `make setup`")
    asyncio.run(
        measure(
            other,
            arguments.question,
            arguments.arm or _ARMS,
            arguments.repeats,
            arguments.figure or ["delivered_per_second"],
            arguments.maximum,
        )
    )


if __name__ == "__main__":
    main()
