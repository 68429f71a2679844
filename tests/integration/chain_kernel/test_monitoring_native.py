"""Native histograms as a real Prometheus scrapes and queries them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chain_kernel.monitoring import Buckets, Sample
from sequencer.stats import BATCH_SIZES
from tests.prometheus import scraped

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.prometheus import Prometheus

COMMITS = "orderchain_sequencer_commit_seconds"
SIZES = "orderchain_sequencer_batch_size_orders"
LABELS = {"chain": "1", "name": "here"}


class Part:
    """A part that has counted what a test gives it."""

    def __init__(self) -> None:
        self.seconds = Buckets()
        self.sizes = Buckets(BATCH_SIZES)

    def samples(self) -> Iterable[Sample]:
        for name, buckets in ((COMMITS, self.seconds), (SIZES, self.sizes)):
            yield Sample(name, "histogram", buckets.histogram, "Of a test.", LABELS)
        yield Sample(
            "orderchain_intake_records_total", "counter", 300, "Of a test.", {"topic": "é"}
        )

    def why_not_ready(self) -> str | None:
        return None


async def only(prometheus: Prometheus, query: str) -> float:
    await prometheus.until_scraped(query)
    [value] = await prometheus.values(query)
    return value


async def test_prometheus_takes_native_histograms_and_computes_their_quantiles(
    tmp_path: Path,
) -> None:
    part = Part()
    async with scraped(tmp_path, part, native=True) as prometheus:
        await prometheus.until_scraped(f"histogram_count({COMMITS}) == 0")
        for number in range(1, 101):
            part.seconds.add(number / 1_000)
            part.sizes.add(number)
        part.seconds.add(0.0)
        await prometheus.until_scraped(f"histogram_count({COMMITS}) == 101")
        assert await only(prometheus, f"histogram_sum({COMMITS})") == pytest.approx(5.05)
        # A bucket is 9 % wide; a classic one of these would say between 0.05 and 0.1.
        for rank in (0.5, 0.75, 0.9, 0.99):
            query = f"histogram_quantile({rank}, {COMMITS})"
            assert await only(prometheus, query) == pytest.approx(rank / 10, rel=0.09)
        rate = f"histogram_quantile(0.99, rate({COMMITS}[1m]))"
        assert await only(prometheus, rate) == pytest.approx(0.099, rel=0.09)
        assert await only(prometheus, f"histogram_quantile(1, {SIZES})") == pytest.approx(100, 0.09)
        share = f"histogram_fraction(0, 0.0625, {COMMITS})"  # 2^-4, where a bucket ends
        assert await only(prometheus, share) == pytest.approx(63 / 101)
        # What is no histogram comes in the same form.
        assert await only(prometheus, 'orderchain_intake_records_total{topic="é"}') == 300
        assert await only(prometheus, "orderchain_ready") == 1


async def test_prometheus_without_the_feature_takes_the_classic_buckets(tmp_path: Path) -> None:
    part = Part()
    for seconds in (0.0005, 0.003, 60.0):
        part.seconds.add(seconds)
    async with scraped(tmp_path, part) as prometheus:
        await prometheus.until_scraped(f"{COMMITS}_count == 3")
        bounds = {"0.0005": 1, "0.0025": 1, "0.005": 2, "10.0": 2, "+Inf": 3}
        for bound, count in bounds.items():
            assert await only(prometheus, f'{COMMITS}_bucket{{le="{bound}"}}') == count
        assert await prometheus.values(f"histogram_count({COMMITS})") == []
