"""Percentiles from merged histograms: never from averages, and never averaged themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hdrh.histogram import HdrHistogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOWEST_US = 1
HIGHEST_US = 600_000_000
"""Ten minutes: an order that waited longer counts as that."""
DIGITS = 3
SHOWN = (50.0, 90.0, 99.0, 99.9)


def histogram_of(latencies_ns: Iterable[int] | np.ndarray[Any, Any]) -> str:
    """Return the histogram of latencies, encoded as text. What is below 1 us counts as that."""
    values = np.asarray(
        list(latencies_ns) if not isinstance(latencies_ns, np.ndarray) else latencies_ns
    )
    microseconds, counts = np.unique(
        np.clip(values // 1_000, LOWEST_US, HIGHEST_US), return_counts=True
    )
    histogram = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    for value, count in zip(microseconds.tolist(), counts.tolist(), strict=True):
        histogram.record_value(value, count)
    encoded: bytes = histogram.encode()
    return encoded.decode("ascii")


def merged(histograms: Sequence[str]) -> dict[str, float]:
    """Return percentiles in milliseconds over all of `histograms` together, and their count."""
    total = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    for text in histograms:
        total.decode_and_add(text.encode("ascii"))
    found = {f"p{share:g}": total.get_value_at_percentile(share) / 1e3 for share in SHOWN}
    return found | {"max": total.get_max_value() / 1e3, "count": float(total.get_total_count())}
