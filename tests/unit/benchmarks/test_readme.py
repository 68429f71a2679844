import pytest

from benchmarks.load import Line
from benchmarks.report import BEGIN, END, README, with_tables
from benchmarks.spreads import Lines, histogram_of


def lines() -> Lines:
    rates = {
        "engine 100": 900.0, "engine 100 keys not compared": 1_000.0, "engine 1000": 2_000.0,
        "engine 1000 in Python": 1_500.0,
        "common_way 500": 50.0,
    }  # fmt: skip
    return Lines(
        Line(question="comparison", arm=arm, repeat=0, run="r",
             figures={"delivered_per_second": rate})
        for arm, rate in rates.items()
    )  # fmt: skip


def latencies() -> Lines:
    every, undisturbed = ([5_000_000] * 98 + [late] * 2 for late in (40_000_000, 9_000_000))
    figures = {
        "histogram": histogram_of(every), "undisturbed_histogram": histogram_of(undisturbed),
    }  # fmt: skip
    return Lines(
        [
            Line(question="open_load", arm=arm, repeat=0, run="r", figures=figures)
            for arm in ("1,000/s, engine", "10,000/s, engine, one by one")
        ]
    )


def test_tables_stand_between_their_marks_and_nowhere_else() -> None:
    text = with_tables(f"before\n{BEGIN}\nold\n{END}\nafter\n", lines(), latencies())
    assert text.startswith(f"before\n{BEGIN}\n|orders/s")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "old" not in text
    assert "|**orderchain**|900|2,000|-|" in text
    assert "|orderchain, keys not compared|1,000|-|-|" in text
    assert "|orderchain, in Python|-|1,500|-|" in text
    row = "an INSERT and a JSON record per order, 500 a transaction"
    assert f"|{row}|-|50.0|-|" in text
    assert "bare pipe" not in text
    assert "|**orderchain**|5.00, 40.0 (9.01)|-|-|-|" in text
    assert "|orderchain, one by one|-|5.00, 40.0 (9.01)|-|-|" in text
    assert with_tables(text, lines(), latencies()) == text
    assert "p99" not in with_tables(text, lines(), Lines(()))
    readme = README.read_text(encoding="utf-8")
    assert with_tables(readme, lines(), latencies()) != readme
    with pytest.raises(ValueError, match="has no line"):
        with_tables("nothing here", lines(), latencies())
