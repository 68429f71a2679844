"""Makes a world that fails as small as it may be: what is left is what it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .world import SeedFailed, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .plan import Plan

PLAINER: Final[dict[str, object]] = {
    "pairs": (), "old_primary": "never replaced", "fail_overs": 1, "wrong_seals": 0.0,
    "commit_loss": 0.0, "database_loss": 0.0, "broker_loss": 0.0, "link_loss": 0.0,
    "is_standby_stuck": False, "sources": "primary", "down_at_stop": "nothing",
    "broker_in_the_end": "there", "topic_records": 0, "topic_partitions": 1, "receivers": 1,
    "clients": 1, "sequencers": 1, "calls_per_client": 5, "is_time_ids": False,
    "refuses_without_kafka": False, "linger_seconds": 0.0, "patience_seconds": 1_000.0,
}  # fmt: skip
"""What may be left out of a world, the most confusing first: lost and late messages among them, so
that what is left comes in the order in which it was sent."""

FAULTS_MAX: Final = 60


def shrink(failure: SeedFailed) -> SeedFailed:
    """Return how the smallest world of this seed fails that breaks the same rule."""
    smallest = failure
    for smaller in _smaller(failure.plan):
        smallest = _failing(smallest, smaller) or smallest
    for number in range(1, FAULTS_MAX if smallest.plan.faults_per_second else 0):
        without = (*smallest.changes.get("without_faults", ()), number)
        smallest = _failing(smallest, {"without_faults": without}) or smallest
    return smallest


def _smaller(plan: Plan) -> Iterator[dict[str, Any]]:
    for name, value in PLAINER.items():
        if getattr(plan, name) != value:
            yield {name: value}
    yield {"faults_per_second": 0.0}


def _failing(failure: SeedFailed, changes: dict[str, Any]) -> SeedFailed | None:
    """Return how the world fails with more changes, if it breaks the same rule."""
    try:
        simulate(failure.seed, **{**failure.changes, **changes})
    except SeedFailed as found:
        return found if found.rule == failure.rule else None
    return None
