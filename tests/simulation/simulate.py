"""Lives through as many worlds as asked for: `make simulate SEEDS=10000`."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TextIO

from tests.simulation.world import SeedFailed, simulate

CHUNK = 50


def live_through(until: int, first: int) -> tuple[int, list[tuple[int, str]]]:
    """Return how many seeds were lived through from `first` on, and those that failed."""
    seeds = range(first, min(first + CHUNK, until))
    failures = []
    for seed in seeds:
        try:
            simulate(seed)
        except SeedFailed as failure:
            failures.append((seed, str(failure)))
    return len(seeds), failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    until = given.seed + given.seeds
    began, done, failed = time.monotonic(), 0, list[int]()
    with ProcessPoolExecutor(given.jobs) as pool:
        firsts = range(given.seed, until, CHUNK)
        for count, failures in pool.map(partial(live_through, until), firsts):
            done += count
            for seed, shown in failures:
                failed.append(seed)
                tell(sys.stdout, f"{shown}\n")
            rate = done / (time.monotonic() - began)
            tell(sys.stderr, f"\r{done} of {given.seeds}, {rate:.0f}/s, {len(failed)} failed")
    tell(sys.stderr, "\n")
    tell(sys.stdout, f"{done} seeds, {len(failed)} failed {failed or ''}\n")
    return 1 if failed else 0


def tell(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
