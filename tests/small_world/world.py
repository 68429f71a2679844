"""The small world: 2 leaders, 2 servers, 2 receivers, and what may go wrong."""

from __future__ import annotations

from .explore import Explorer, Step
from .receiving import Place, Receiving
from .sequencing import Bounds, Left, Seen, Sequencing, World

WORLD, SEEN, PLACE, LEFT, RECEIVER, OTHER = range(6)


def small_world(bounds: Bounds) -> Explorer:
    """Return what explores it."""
    leads, receives = Sequencing(bounds), Receiving(bounds.wrongs)
    world, left = World(), Left(bounds.crashes, bounds.lost_answers)
    first = world, Seen.of(world, bounds.wrongs), Place(), left, None, None
    steps = [Step(leads.steps, (WORLD, SEEN, LEFT))]
    for receiver in (RECEIVER, OTHER):
        steps.append(Step(receives.steps, (receiver, SEEN, PLACE)))
        steps.append(Step(receives.crash, (receiver, LEFT)))
    return Explorer(first, steps, (RECEIVER, OTHER))
