"""Thousands of worlds: whatever breaks, the invariants hold, and everything arrives in the end.

`make simulate SEEDS=n` lives through more of them.
"""

import gc
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import pytest
from msgspec.structs import fields

from tests.judge.rules import uncovered
from tests.programs import output_of

from .hosts import sequencer_config
from .outbox.plan import Plan as PlanOfMessages
from .outbox.world import simulate as simulate_messages
from .pairs import PAIRS
from .plan import Plan
from .receiver_host import receiver_config
from .world import simulate

SEEDS = 2_000
SEEDS_PER_TEST = 100
SEEDS_OF_A_MERGE = 100
"""About ten seconds; `make nightly` lives through the others."""

NOT_DRAWN = {
    "unsafe_durability": "a database in memory has no settings that could be unsafe",
    "calm_collector": "the collector belongs to the process, which opens no world's sequencer",
    "checkpoint": "where a service keeps its place is drawn, and not a setting",
}

pytestmark = pytest.mark.simulation


@pytest.mark.guarantee(
    "G1", "G2", "G3", "G4", "G5", "G7", "G8", "G9", "G11", "G14", "G15", "G17", "G18"
)
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[] if first < SEEDS_OF_A_MERGE else [pytest.mark.nightly])
        for first in range(0, SEEDS, SEEDS_PER_TEST)
    ],
)
def test_worlds_with_faults_keep_every_invariant_and_deliver_everything(first: int) -> None:
    judges = [simulate(seed).judge for seed in range(first, first + SEEDS_PER_TEST)]
    assert not uncovered(*(model for judge in judges for model in judge.models))


@pytest.mark.parametrize("simulate", [simulate, simulate_messages], ids=["orders", "messages"])
def test_same_seed_takes_the_same_steps_in_another_process(simulate: Callable[..., Any]) -> None:
    """Neither addresses nor the hashes of strings decide anything."""
    ask = f"from {simulate.__module__} import simulate; print(simulate(6).digest())"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        found = output_of(sys.executable, "-c", ask, env=environment)
        assert found.strip() == simulate(6).digest()


def test_world_that_is_over_leaves_nothing_in_memory() -> None:
    """What is untracked by the garbage collector must be part of no circle."""
    worlds = [weakref.ref(simulate(seed)) for seed in range(10)]
    gc.collect()
    assert [world() for world in worlds] == [None] * 10


@pytest.mark.parametrize("plan", [Plan, PlanOfMessages])
def test_drawn_worlds_differ_in_all_that_is_drawn(plan: type[Plan | PlanOfMessages]) -> None:
    plans = [plan.draw(seed) for seed in range(100)]
    for field in plan.__struct_fields__:
        assert len({getattr(plan, field) for plan in plans}) > 1, field


def test_every_choice_that_a_setting_leaves_is_drawn() -> None:
    """A default that no world has is not tested, nor is what one sets instead."""
    plans = [Plan.draw(seed) for seed in range(100)]
    for config_of in (sequencer_config, receiver_config):
        configs: list[Any] = [config_of(plan, "any") for plan in plans]
        for drawn in (configs, [config.tuning for config in configs]):
            for field in fields(drawn[0]):
                is_choice = field.type is bool or get_origin(field.type) is Literal
                if not is_choice or field.name in NOT_DRAWN:
                    continue
                choices = set(get_args(field.type)) or {False, True}
                assert {getattr(one, field.name) for one in drawn} == choices, field.name


@pytest.mark.nightly
def test_worlds_are_worth_their_time() -> None:
    """A world in which nothing happens would prove nothing."""
    worlds = [simulate(seed) for seed in range(60)]
    epochs = [world.chain.epoch for world in worlds]
    assert sum(epochs) / len(worlds) > 2.0, "hardly a take-over"
    assert sum(len(world.chain.batches) for world in worlds) / len(worlds) > 8.0
    assert sum(len(world.chain.intake) for world in worlds) > 30, "hardly a topic was read"
    assert sum(len(world.chain.rejects) for world in worlds) > 5
    assert sum(len(world.chain.skips) for world in worlds) > 5, "no queue was ever full"
    assert {name for world in worlds for name in world.plan.pairs} == PAIRS.keys()
    too_old = sum(world.judge.fence.decided["G4 too old, not below"] for world in worlds)
    assert too_old > 3, "hardly a key grew too old"
