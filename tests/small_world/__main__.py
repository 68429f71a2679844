"""Explores the small world wholly, or until the time is over: `python -m tests.small_world`."""

from __future__ import annotations

import argparse
import sys

from .sequencing import Bounds
from .world import small_world


def main() -> int:
    bounds = Bounds()
    parser = argparse.ArgumentParser(prog="python -m tests.small_world", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--terms", type=int, default=bounds.terms, help="take-overs, at most")
    parser.add_argument("--crashes", type=int, default=bounds.crashes)
    given = parser.parse_args()
    bounds = bounds._replace(terms=given.terms, crashes=given.crashes)
    found = small_world(bounds).explore(given.seconds)
    for line in found.story:
        sys.stdout.write(f"{line}\n")
    extent = "all of them" if found.is_whole else "and more"
    asked = f"the cores were asked {found.questions:,} times"
    sys.stdout.write(
        f"{found.states:,} states, {extent}, the last after {found.steps} steps; {asked}; "
        f"{found.seconds:.0f} s\n"
    )
    return 1 if found.rule else 0


if __name__ == "__main__":
    sys.exit(main())
