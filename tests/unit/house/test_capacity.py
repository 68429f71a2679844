"""The arithmetic of the page on capacity, from the last figures of the benchmark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/capacity.md").read_text(encoding="utf-8")
TABLE = (ROOT / "benchmarks/results/table.md").read_text(encoding="utf-8")
PEAK = 115_740
"""Orders per second: ten times the mean of 10^9 per day."""


def medians(batch: int) -> dict[str, float]:
    """Return the medians of the engine's row of a batch size, keys compared, by their headers."""
    headers, row = (
        re.findall(rf"^\|{name}\|(.*)\|$", TABLE, flags=re.MULTILINE)[0].split("|")
        for name in ("rival, batch", f"engine {batch}")
    )
    cells = zip(headers, row, strict=True)
    numbers = ((header, cell.split(" ")[0].replace(",", "")) for header, cell in cells)
    return {header: float(number) for header, number in numbers if number not in {"", "-"}}


@pytest.mark.parametrize("batch", [1_000, 5_000])
def test_cpu_time_is_that_of_the_last_run(batch: int) -> None:
    all_of_them = medians(batch)["CPU"]
    cpu = f"{all_of_them:.2f} us per order"
    spent = f"{all_of_them * 1_000:,.0f} s per day, {all_of_them * PEAK / 1e6:.1f} core at the peak"
    (line,) = [line for line in PAGE.splitlines() if f"batches of {batch:,} | {cpu}" in line]
    assert spent in line


def test_bound_of_a_chain_is_the_rate_of_the_last_run() -> None:
    rate = medians(5_000)["orders/s"]
    text = " ".join(PAGE.split())
    assert f"below the {rate:,.0f} measured at batches of 5,000" in text
    assert f"and {rate:,.0f} orders per second, {rate / 5_000:.0f} commits per second of " in text
    assert f"{5_000_000 / rate:.0f} ms." in text


def test_log_is_that_of_the_last_run() -> None:
    log = round(medians(1_000)["log bytes"])
    assert f"10^9 x {log} bytes = {log} GB" in PAGE
