"""A few minutes of the soak: `make soak` is the long form."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .soak import soak


@pytest.mark.guarantee("G1", "G3", "G4", "G5", "G6", "G7", "G10", "G14", "G15")
@pytest.mark.nightly
@pytest.mark.timeout(1_800)
async def test_minutes_of_load_and_faults_are_judged_well_and_nothing_grows(
    server_folder: Path, seeded: random.Random
) -> None:
    assert await soak(server_folder, hours=0.05, rate=500.0, seeded=seeded) == []
