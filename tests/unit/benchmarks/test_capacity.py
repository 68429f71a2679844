"""The model of a fleet: its events, its error on this machine, and the page that it writes."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest

from benchmarks import capacity
from benchmarks.capacity import Fleet, Resource, World, fleet_for, off_by, times_of, with_tables
from benchmarks.load import Line, Scope
from benchmarks.questions import question_of
from benchmarks.report import TABLE, write_report
from benchmarks.session import save
from benchmarks.spreads import histogram_of
from tests.sources import ROOT

REPORT = (ROOT / "benchmarks/results/table.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/capacity.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("cores", "seconds"), [(1, 6.0), (2, 4.0), (3, 3.0)])
def test_processes_share_cores_in_the_order_in_which_they_ask(cores: int, seconds: float) -> None:
    world, resource = World(spread=0.0), Resource("cores", cores)
    ended: list[float] = []

    def work(needed: float) -> Generator[Resource | float, None, None]:
        yield from world.hold((resource,), needed)
        ended.append(needed)

    for needed in (1.0, 2.0, 3.0):
        world.start(work(needed))
    world.run()
    assert world.now == seconds
    assert ended == [1.0, 2.0, 3.0]
    assert (resource.used_seconds, resource.free) == (6.0, cores)


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


def test_fleet_grows_until_none_is_above_one_half() -> None:
    times = times_of(REPORT, 5_000)
    small, *_ = fleet_for(times, 1_000)
    assert small == Fleet()
    grown, first, last = fleet_for(times, 3_000_000)
    assert max(first.busy.values()) > 0.5 >= max(last.busy.values())
    assert grown.chains > small.chains
    assert last.p99_ms < first.p99_ms


def test_model_that_is_off_writes_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(capacity, "RESULTS", tmp_path)
    monkeypatch.setattr(capacity, "PAGE", tmp_path / "page.md")
    rate = times_of(REPORT, 1_000).measured_rate
    other = REPORT.replace(f"|{rate:,.0f} (", f"|{rate / 2:,.0f} (")
    assert times_of(other, 1_000).measured_rate == round(rate / 2)
    (tmp_path / "table.md").write_text(other, encoding="utf-8")
    assert capacity.main() == 1
    assert re.search(r"the model is off by \d+%, more than 20%", capsys.readouterr().err)
    assert not (tmp_path / "page.md").exists()


def test_report_without_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="the report has no row 'engine 7'"):
        times_of(REPORT, 7)
