"""Does one wrong after the other, and shows those that no test notices: `make mutate`."""

import argparse
import os
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from .mutants import ROOT, Mutant, mutants_of

TARGETS = {
    "sequencer/core.py": "tests/unit/sequencer/test_core.py tests/unit/sequencer/test_lost_life.py "
    "tests/unit/sequencer/test_core_id_strategy.py tests/unit/sequencer/test_order_columns.py",
    "sequencer/assembly.py": "tests/unit/sequencer",
    "matcher_receiver/core.py": "tests/unit/matcher_receiver",
    "gapfill/batch_proof.py": "tests/unit/gapfill tests/contract/test_gap_source.py",
    "outbox/statuses.py": "tests/unit/outbox/test_statuses.py",
    "outbox/consumer/decisions.py": "tests/unit/outbox/consumer",
    "outbox/consumer/admission.py": "tests/unit/outbox/consumer",
    "chain_kernel/model.py": "tests/unit/chain_kernel tests/unit/sequencer/test_core.py",
    "sequencer/queries.sql": "tests/integration/sequencer/stores/test_fence_of_each_statement.py "
    "tests/contract/test_chain_store.py tests/contract/test_key_store.py",
    "matcher_receiver/queries.sql": "tests/contract/test_checkpoint_store.py",
}
"""The tests of each source; where they are many, those that know it best come first."""

SECONDS_MAX = 300.0
"""A run that takes longer hangs, which is noticed."""

REASONS = Path(__file__).with_name("survivors.toml")


def survives(mutant: Mutant) -> bool:
    """Return whether no test notices it."""
    tests = TARGETS[mutant.path].split()
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "tests.mutate.plugin"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            env=os.environ | {"ORDERCHAIN_MUTANT": f"{mutant.path}:{mutant.number}"},
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of a path")
    parser.add_argument("--at-most", type=int, default=25, help="of one file, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8")) if REASONS.exists() else {}
    drawn: list[Mutant] = []
    for path in TARGETS:
        if given.only in path:
            found = mutants_of(path)
            few = min(len(found), given.at_most)
            drawn += sorted(Random(given.seed).sample(found, few), key=lambda each: each.number)
    began, unexplained = time.monotonic(), 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, is_alive in zip(drawn, pool.map(survives, drawn), strict=True):
            if is_alive:
                reason = reasons.get(mutant.name, "")
                unexplained += not reason
                show(f"survives: {mutant.name}{f' ({reason})' if reason else ''}")
    seconds = time.monotonic() - began
    show(f"{len(drawn)} wrongs in {seconds:.0f} s, {unexplained} survive without a reason")
    return 1 if unexplained else 0


def show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
