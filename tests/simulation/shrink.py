"""Makes a world that fails as small as it may be: what is left is what it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .seeds import SeedFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def _smaller(plan: Any) -> Iterator[dict[str, Any]]:
    for name, value in plan.PLAINER.items():
        if getattr(plan, name) != value:
            yield {name: value}
    yield {"faults_per_second": 0.0}


def _failing(failure: SeedFailed, changes: dict[str, Any]) -> SeedFailed | None:
    """Return how the world fails with more changes, if it breaks the same rule."""
    try:
        failure.again(failure.seed, **{**failure.changes, **changes})
    except SeedFailed as found:
        return found if found.rule == failure.rule else None
    return None
