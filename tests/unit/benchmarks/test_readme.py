from __future__ import annotations

import pytest

from benchmarks.load import Line
from benchmarks.report import BEGIN, END, README, with_tables
from benchmarks.spreads import Lines, histogram_of


def lines() -> Lines:
    rates = {"engine 100": 1_000.0, "engine 1000": 2_000.0, "common_way 500": 50.0}
    return Lines(
        Line(question="comparison", arm=arm, repeat=0, run="r", engine="e",
             figures={"delivered_per_second": rate})
        for arm, rate in rates.items()
    )  # fmt: skip


def waits() -> Lines:
    histograms = {
        "histogram": histogram_of(range(1_000_000, 101_000_000, 1_000_000)),
        "ack_histogram": histogram_of([2_000_000]),
    }
    return Lines([
        Line(question="open_load", arm="50 %, self-clocking", repeat=0, run="r", engine="e",
             figures=histograms)
    ])  # fmt: skip


def test_tables_stand_between_their_marks_and_nowhere_else() -> None:
    text = with_tables(f"before\n{BEGIN}\nold\n{END}\nafter\n", lines(), waits())
    assert text.startswith(f"before\n{BEGIN}\n| orders/s")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "old" not in text
    assert "| **orderchain** | 1,000 | 2,000 | - |" in text
    assert "| the common way (at 500) | - | 50.0 | - |" in text
    assert "| 50 % | 50.0 | 99.0 | 100 | 2.00 | 2.00 |" in text
    assert "bare pipe" not in text
    assert with_tables(text, lines(), waits()) == text


def test_text_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no line"):
        with_tables("nothing here", lines(), waits())


def test_readme_has_the_marks() -> None:
    readme = README.read_text(encoding="utf-8")
    assert with_tables(readme, lines(), waits()) != readme
