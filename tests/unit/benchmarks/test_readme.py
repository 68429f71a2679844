from __future__ import annotations

import pytest

from benchmarks.load import Line
from benchmarks.report import BEGIN, END, README, with_table
from benchmarks.spreads import Lines


def lines() -> Lines:
    rates = {
        "engine 100": 900.0, "engine 100 keys not compared": 1_000.0, "engine 1000": 2_000.0,
        "common_way 500": 50.0,
    }  # fmt: skip
    return Lines(
        Line(question="comparison", arm=arm, repeat=0, run="r",
             figures={"delivered_per_second": rate})
        for arm, rate in rates.items()
    )  # fmt: skip


def test_table_stands_between_its_marks_and_nowhere_else() -> None:
    text = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", lines())
    assert text.startswith(f"before\n{BEGIN}\n| orders/s")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "old" not in text
    assert "| **orderchain** | 900 | 2,000 | - |" in text
    assert "| orderchain, keys not compared | 1,000 | - | - |" in text
    assert "| the common way (at 500) | - | 50.0 | - |" in text
    assert "bare pipe" not in text
    assert with_table(text, lines()) == text
    readme = README.read_text(encoding="utf-8")
    assert with_table(readme, lines()) != readme
    with pytest.raises(ValueError, match="has no line"):
        with_table("nothing here", lines())
