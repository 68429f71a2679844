"""Worlds of messages: whatever breaks, each takes its effect once, or waits for a person.

`make simulate SEEDS=n` lives through more of them.
"""

from __future__ import annotations

import pytest

from tests.judge.rules import uncovered
from tests.simulation.seeds import SeedFailed
from tests.simulation.shrink import shrink

from .mutations import MUTATIONS
from .world import simulate

SEEDS = 1_000
SEEDS_PER_TEST = 50
SEEDS_OF_A_MERGE = 100

pytestmark = pytest.mark.simulation


@pytest.mark.guarantee("G6", "G10", "G16", "G17", "G20")
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[] if first < SEEDS_OF_A_MERGE else [pytest.mark.nightly])
        for first in range(0, SEEDS, SEEDS_PER_TEST)
    ],
)
def test_worlds_with_faults_handle_every_message_once(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        simulate(seed)


def test_failing_world_is_made_smaller_and_breaks_the_same_rule() -> None:
    mutation = next(each for each in MUTATIONS if each.name == "key_of_a_parked_one_not_held")
    with mutation.done():
        with pytest.raises(SeedFailed) as found:
            all(simulate(seed, **mutation.changes) for seed in range(mutation.seeds))
        smallest = shrink(found.value)
    assert smallest.rule == found.value.rule == "G6 overtaken in its key"
    assert (smallest.plan.crashes, smallest.plan.broker_loss) == (0.0, 0.0)


@pytest.mark.nightly
def test_worlds_are_worth_their_time() -> None:
    """A world in which nothing happens would prove nothing."""
    worlds = [simulate(seed) for seed in range(60)]
    assert not uncovered(*(model for world in worlds for model in world.models))
    steps = set().union(*(world.successions for world in worlds))
    assert len(steps) >= 9, steps
