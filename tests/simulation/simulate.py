"""Lives through as many worlds as asked for: `make simulate SEEDS=10000`."""

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from typing import NamedTuple, TextIO

from tests.simulation import world as chain
from tests.simulation.outbox import world as outbox
from tests.simulation.seeds import SeedFailed
from tests.simulation.shrink import shrink

CHUNK = 50
ASKING_WORLDS = 100
"""In so many every rule of every model is asked."""
KINDS = (chain.simulate, outbox.simulate)
"""Each seed is one of either."""


class Lived(NamedTuple):
    """What some worlds have shown."""

    worlds: int
    failures: list[tuple[int, str]]
    """Seeds, and how they failed."""
    successions: set[tuple[str, str]]
    asked: Counter[str]
    """How often each rule was asked."""


def live_through(until: int, first: int) -> Lived:
    """Live through some worlds from the seed `first` on, at most up to `until`."""
    seeds = range(first, min(first + CHUNK, until))
    lived = Lived(len(seeds), [], set(), Counter())
    for seed, simulate in product(seeds, KINDS):
        try:
            world = simulate(seed)
            lived.successions.update(world.successions)
            for model in world.models:
                lived.asked.update(dict.fromkeys(model.RULES, 0))
                lived.asked.update(model.decided)
        except SeedFailed as failure:
            shown = f"{failure}\n\nthe smallest that fails so: {shrink(failure)}"
            lived.failures.append((seed, shown))
    return lived


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    until = given.seed + given.seeds
    began, done, failed = time.monotonic(), 0, list[int]()
    successions, asked = set[tuple[str, str]](), Counter[str]()
    with ProcessPoolExecutor(given.jobs) as pool:
        firsts = range(given.seed, until, CHUNK)
        for lived in pool.map(partial(live_through, until), firsts):
            done += lived.worlds
            successions |= lived.successions
            asked.update(lived.asked)
            for seed, shown in lived.failures:
                failed.append(seed)
                tell(sys.stdout, f"{shown}\n")
            rate = done / (time.monotonic() - began)
            tell(sys.stderr, f"\r{done} of {given.seeds}, {rate:.0f}/s, {len(failed)} failed")
    tell(sys.stderr, "\n")
    never = [rule for rule, times in asked.items() if not times]
    tell(sys.stdout, f"{len(successions)} successions of what was seen; never asked: {never}\n")
    tell(sys.stdout, f"{done} seeds, {len(failed)} failed {failed or ''}\n")
    return 1 if failed or (never and done >= ASKING_WORLDS) else 0


def tell(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
