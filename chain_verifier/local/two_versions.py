"""Two versions of a fold over a chain of the database, in plain Python, without Java and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chain_verifier.dataframe.fold import events_of, orders_of
from chain_verifier.dataframe.two_folds import (
    Rows,
    TwoFoldsGroup,
    groups_of,
    require_two,
    two_versions,
)
from chain_verifier.sources.database import DatabaseRows, require_whole
from chain_verifier.sources.options import ChainOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.model import Event
    from chain_verifier.config import DatabaseSource
    from chain_verifier.dataframe.fold import Fold
    from chain_verifier.dataframe.two_folds import Divergence, TwoVersions

_HELD_ROWS_MAX: Final = 2**18
"""Rows of all groups that are held between comparisons: 100 MB of small orders."""


def compare_versions(
    source: DatabaseSource,
    chain_id: int,
    fold: Fold[Any],
    candidate: Fold[Any],
    compared_rows: int | None = None,
) -> TwoVersions:
    """Replay a chain through two folds, as `orderchain.spark.replay` does with a candidate.

    Memory holds the states of all groups.

    Raises:
        SettingError: the candidate is the fold, or has another `group`; `compared_rows` is not 1 to
            131,072; rows are archived.
        InputError: a fold raises, `group` returns what is no text, or the candidate gives an order
            another group.
        RowsMissing: the rows of the database are no chain.
        RowsArchived: some of them were archived while they were read.
    """
    require_two(fold, candidate, compared_rows)
    options = {"url": str(source.database), "chains": str(chain_id), "linked": "true"}
    rows = DatabaseRows(ChainOptions.of(options))
    ranges = rows.ranges()
    require_whole(rows, chain_id)  # after the plan: it lacks what was archived before it
    groups: dict[str, TwoFoldsGroup] = {}
    found: list[Divergence] = []
    held = 0
    for batch in rows.read(ranges):
        events = events_of(batch)
        for name, places in _by_group((fold, candidate), events).items():
            if name not in groups:
                groups[name] = TwoFoldsGroup((fold, candidate), name, compared_rows)
            orders = [events[place] for place in places]
            one, other = (
                orders_of(each, batch.take(places)) if each.columns else orders
                for each in (fold, candidate)
            )
            results = groups[name].apply(Rows(name, [each.id for each in orders], (one, other)))
            found += [each.divergence for each in results if each.divergence]
        held += len(events)
        if held > _HELD_ROWS_MAX:
            results = (each for group in groups.values() for each in group.compare())
            found += [each.divergence for each in results if each.divergence]
            held = 0
    results = (each for group in groups.values() for each in group.end())
    found += [each.divergence for each in results if each.divergence]
    return two_versions(len(groups), found)


def _by_group(folds: Sequence[Fold[Any]], events: Sequence[Event]) -> dict[str, list[int]]:
    """Return the places of the orders of each group. Raises InputError."""
    places: dict[str, list[int]] = {}
    for at, name in enumerate(groups_of(folds, events)):
        places.setdefault(name, []).append(at)
    return places
