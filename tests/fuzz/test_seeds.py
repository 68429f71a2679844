"""Kept inputs of each target of `make fuzz`, and what once failed: small, and made by us."""

import tracemalloc
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.targets import TARGETS

SEEDS: Final = Path(__file__).parent / "seeds"
CASES: Final = sorted(path.relative_to(SEEDS) for path in SEEDS.glob("*/*"))
BYTES_MAX: Final = 80 * 2**20
"""What a few hundred bytes may take, beside what is loaded once."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_seed_is_read_or_refused_in_little_memory(case: Path) -> None:
    data = (SEEDS / case).read_bytes()
    TARGETS[case.parts[0]](data)
    tracemalloc.start()
    try:
        TARGETS[case.parts[0]](data)
        assert tracemalloc.get_traced_memory()[1] < BYTES_MAX
    finally:
        tracemalloc.stop()


def test_each_target_has_seeds() -> None:
    assert {case.parts[0] for case in CASES} == TARGETS.keys()
