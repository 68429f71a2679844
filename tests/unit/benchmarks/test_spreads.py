import statistics
from random import Random

import numpy as np
import pytest

from benchmarks.spreads import HIGHEST_US, histogram_of, merged


def test_percentiles_of_merged_histograms_are_those_of_all_values_together() -> None:
    # One repeat was a hundred times slower: its tail is the tail of all, and an average of the two
    # percentiles would be off by half.
    random = Random(7)
    fast = [random.randrange(100_000, 2_000_000) for _ in range(10_000)]
    slow = [random.randrange(10_000_000, 200_000_000) for _ in range(10_000)]
    found = merged([histogram_of(fast), histogram_of(slow)])
    every = np.array(fast + slow) / 1e6
    for name, share in {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9}.items():
        expected = float(np.percentile(every, share, method="lower"))
        assert found[name] == pytest.approx(expected, rel=2e-3), name
    assert found["max"] == pytest.approx(max(every), rel=2e-3)
    assert found["count"] == 20_000


def test_percentiles_with_one_slow_value_in_a_repeat_are_no_average_of_the_repeats() -> None:
    quiet = [histogram_of([1_000_000] * 1_000) for _ in range(9)]
    stalled = histogram_of([1_000_000] * 900 + [500_000_000] * 100)
    alone = [merged([text])["p99"] for text in (*quiet, stalled)]
    assert statistics.mean(alone) == pytest.approx(50.9, rel=0.01)
    assert merged([*quiet, stalled])["p99"] == pytest.approx(1.0, rel=0.01)
    assert merged([*quiet, stalled])["p99.9"] == pytest.approx(500, rel=0.01)


def test_histogram_with_values_out_of_range_keeps_their_count() -> None:
    found = merged([histogram_of([-5, 0, 999, HIGHEST_US * 5_000])])
    assert found["count"] == 4
    assert found["max"] == pytest.approx(HIGHEST_US / 1e3, rel=2e-3)
    assert found["p50"] == pytest.approx(0.001)
