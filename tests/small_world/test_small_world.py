"""The small world keeps every promise, and shows each wrong that it can by its shortest story."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS

from .sequencing import Bounds
from .world import small_world

pytestmark = pytest.mark.simulation

FOUND = {
    "keys_of_any_primary": 8,
    "rows_of_any_primary": 5,
    "no_fence": 3,
    "blind_retry": 4,
    "early_reading_back": 5,
    "sent_ahead_and_forgotten": 7,
    "acknowledged_before_commit": 1,
    "published_before_commit": 1,
    "keys_not_loaded": 6,
    "keys_forgotten_early": 7,
    "warning_taken_for_success": 3,
    "gap_skipped": 7,
    "senders_believed": 5,
    "silence": 4,
    "checkpoint_before_delivery": 8,
    "checkpoint_without_comparing": 6,
    "standby_believed": 6,
    "frame_believed_about_its_seal": 5,
}
"""How many steps lead to a broken promise. Other wrongs are about time, bounds and intakes."""


@pytest.mark.parametrize("name", FOUND)
def test_wrong_is_found_by_its_shortest_story(name: str) -> None:
    mutation = next(each for each in MUTATIONS if each.name == name)
    with mutation.done():
        found = small_world(Bounds(wrongs=frozenset({name}))).explore(steps=12)
    broken = found.rule.partition(" ")[0]
    assert broken in {word.partition(" ")[0] for word in mutation.found_by}, found
    assert len(found.story) == FOUND[name] + 1, found.story


@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G5", "G7", "G8", "G9", "G11", "G14")
def test_nothing_is_broken_within_the_first_steps() -> None:
    found = small_world(Bounds()).explore(steps=9)
    assert not found.rule, found.story
    assert found.states > 20_000


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_nothing_is_broken_anywhere() -> None:
    found = small_world(Bounds()).explore(seconds=600)
    assert not found.rule, found.story
    assert found.states > 1_000_000
