"""The link rule: every row names the row before it, and ids rise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.event import Event


def is_linked(after_id: int, events: Sequence[Event]) -> bool:
    """Say whether `events` follow the row `after_id` and each other without a break.

    An empty sequence is linked. One pass that reads each id and pid once: twice to three times as
    fast as whole columns (lists of ids and of pids, compared), which walk the rows again from
    memory. This is the hot path; `first_break` asks the same, and names the place.
    """
    for event in events:  # noqa: SIM110 - all() of a generator takes 2.5 times as long
        # The same as `pid == after_id and pid < id`, the id then being the next `after_id`.
        if not after_id == event.pid < (after_id := event.id):
            return False
    return True


def first_break(after_id: int, events: Sequence[Event]) -> int | None:
    """Return the index of the first row that is not linked after `after_id`; None if all are."""
    for index, event in enumerate(events):
        if event.pid != after_id or event.id <= after_id:
            return index
        after_id = event.id
    return None
