"""Where a receiver begins: at its own place, or, if it has none, where it was told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orderchain.errors import NotYetReadable, SettingError
from orderchain.ports import PlaceFinder

if TYPE_CHECKING:
    from matcher_receiver.config import StartAt
    from orderchain.mark import Mark, Standing
    from orderchain.ports import GapSource


class Start(NamedTuple):
    """A place to begin at, and what the database says of it."""

    mark: Mark
    standing: Standing


async def find_start(source: GapSource, own: Mark | None, start_at: StartAt | None) -> Start:
    """Return the place `own`, or without one the place that `start_at` tells of.

    Raises as `orderchain.ports.GapSource.standing`; SettingError where the source cannot find
    places.
    """
    if own is not None:
        return Start(own, await source.standing(own.id, own.batch_last_id))
    standing = await source.standing(await _row_of(source, start_at))
    if standing.mark is None:
        raise NotYetReadable(0, standing.head.last_id)
    return Start(standing.mark, standing)


async def _row_of(source: GapSource, start_at: StartAt | None) -> int:
    if start_at is None:
        return 0
    if start_at.end:
        return (await source.standing(0)).head.last_id
    if start_at.after_id is None and start_at.time_us is None:
        return 0
    if not isinstance(source, PlaceFinder):
        raise SettingError("start_at", type(source).__name__, "a source that finds places")
    if start_at.after_id is not None:
        return await source.row_at_or_before(start_at.after_id)
    return await source.row_before_time(start_at.time_us or 0)
