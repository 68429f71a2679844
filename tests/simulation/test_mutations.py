"""The simulation finds what it is there to find: each wrong done to the engine is noticed."""

import pytest

from .mutations import MUTATIONS, Mutation
from .outbox.mutations import MUTATIONS as OF_MESSAGES
from .seeds import SeedFailed
from .shrink import shrink

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("mutation", [*MUTATIONS, *OF_MESSAGES], ids=lambda mutation: mutation.name)
def test_engine_with_a_wrong_is_found_out_within_the_stated_seeds(mutation: Mutation) -> None:
    with mutation.done():
        found = first_failure(mutation)
    assert found is not None, f"not found within {mutation.seeds} seeds"
    assert f"SEED={found.seed}" in str(found), "how to see it again"
    assert any(word in str(found) for word in mutation.found_by), str(found)


def first_failure(mutation: Mutation) -> SeedFailed | None:
    for seed in range(mutation.seeds):
        try:
            mutation.simulate(seed, **mutation.changes)
        except SeedFailed as failure:
            return failure
    return None


def test_failing_world_is_made_smaller_and_breaks_the_same_rule() -> None:
    mutation = next(each for each in MUTATIONS if each.name == "acknowledged_before_commit")
    with mutation.done():
        found = first_failure(mutation)
        assert found is not None
        smallest = shrink(found)
    assert smallest.rule == found.rule
    plan = smallest.plan
    assert (plan.pairs, plan.clients, plan.receivers, plan.faults_per_second) == ((), 1, 1, 0.0)
    assert str(smallest).startswith(f"seed {found.seed} with {{")
