"""Runs the arms of a comparison by turns, and returns the median of each with its spread."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


async def interleave(
    arms: Mapping[str, Callable[[], Awaitable[float]]], repeats: int
) -> dict[str, list[float]]:
    """Return every arm's figures, the arms run in turn `repeats` times after a warm-up round."""
    figures: dict[str, list[float]] = {name: [] for name in arms}
    for arm in arms.values():
        await arm()
    for _ in range(repeats):
        for name, arm in arms.items():
            figures[name].append(await arm())
    return figures


def spread(values: list[float]) -> dict[str, float]:
    """Return median, lowest and highest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(figures: Mapping[str, list[float]], name: str, base: str) -> dict[str, float]:
    """Return the spread of the ratios of two arms, each within its own round."""
    return spread([one / other for one, other in zip(figures[name], figures[base], strict=True)])
