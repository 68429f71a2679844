"""The model of a fleet: its error on this machine, and the page that it writes."""

from pathlib import Path

import pytest

from benchmarks import capacity
from benchmarks.capacity import off_by, times_of, with_tables
from benchmarks.load import Line, Scope
from benchmarks.questions import question_of
from benchmarks.report import TABLE, write_report
from benchmarks.session import save
from benchmarks.spreads import histogram_of
from tests.sources import ROOT

REPORT = (ROOT / "benchmarks/results/table.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/capacity.md").read_text(encoding="utf-8")


def test_model_predicts_this_machine() -> None:
    assert off_by(REPORT) <= capacity.ERROR_MAX == 0.2


def test_page_is_that_of_the_last_run() -> None:
    assert with_tables(PAGE, REPORT) == PAGE, "python -m benchmarks.capacity"


HISTOGRAM = histogram_of([200_000] * 80 + [300_000] * 20)
FIGURES = {
    "delivered_per_second": 400_000.0, "persisted_per_second": 800_000.0, "orders": 1e6,
    "producer_cpu_seconds": 1.5, "receiver_cpu_seconds": 1.0, "postgres_cpu_seconds": 1.0,
    "kafka_cpu_seconds": 0.5, "wal_mib": 120.0, "check_seconds": 5.0,
    "commit_histogram": HISTOGRAM, "flush_alone_histogram": HISTOGRAM,
}  # fmt: skip


def test_model_reads_the_table_that_the_benchmark_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.report.draw_figures", lambda *_: [])
    for question in ("comparison", "open_load", "spark"):
        for arm in question_of(question).arms(Scope()):
            line = Line(question=question, arm=arm.name, repeat=0, run="r", figures=FIGURES)
            save(tmp_path, line)
    write_report(tmp_path)
    report = (tmp_path / TABLE).read_text(encoding="utf-8")
    for rows in capacity.BATCH_ROWS:
        times = times_of(report, rows)
        assert (times.measured_rate, round(times.log_bytes)) == (400_000, 126)
        assert times.flush == pytest.approx(0.0002, rel=0.01)
        assert times.own / times.server == pytest.approx(2.5 / 1.5, rel=0.05)
    assert "|a day|10^9|10^10|" in with_tables(PAGE, report)
