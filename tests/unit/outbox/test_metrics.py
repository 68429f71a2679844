"""The page for Prometheus, without a service."""

from __future__ import annotations

from dataclasses import fields

from outbox.acts import Unfinished
from outbox.message import smallest_id
from outbox.sender.config import METRICS, RelayStats
from outbox.service.metrics import render

NOW = 1_800_000_000.0


def lines(**given: object) -> list[str]:
    values: dict[str, object] = {
        "counters": {"relay": RelayStats(sent=5)},
        "refusals": {},
        "waiting": 2,
        "unfinished": [],
        "now": NOW,
        **given,
    }
    return render(**values).splitlines()  # type: ignore[arg-type] # by name, as above


def test_every_counter_is_told_with_its_type() -> None:
    told = lines()
    assert "# TYPE orderchain_outbox_relay_sent_total counter" in told
    assert "orderchain_outbox_relay_sent_total 5" in told
    assert "orderchain_outbox_relay_swept_total 0" in told
    assert "orderchain_outbox_waiting 2" in told


def test_counter_by_reason_has_a_sample_for_each_reason() -> None:
    stats = RelayStats()
    stats.bad_confirms.update({"too long": 2, "no header": 1})
    told = lines(counters={"relay": stats})
    assert 'orderchain_outbox_relay_bad_confirms_total{reason="too long"} 2' in told
    assert 'orderchain_outbox_relay_bad_confirms_total{reason="no header"} 1' in told


def test_label_with_quotes_and_line_breaks_stays_one_line() -> None:
    standing = Unfinished('a"b\\c\nd', "init", 1, smallest_id(NOW - 0.5))
    told = lines(unfinished=[standing])
    assert r'orderchain_outbox_deliveries{destination="a\"b\\c\nd",status="init"} 1' in told


def test_database_that_is_away_leaves_its_figures_out() -> None:
    told = lines(unfinished=None)
    assert "orderchain_outbox_database_up 0" in told
    assert not any("orderchain_outbox_deliveries" in line for line in told)
    assert "orderchain_outbox_relay_sent_total 5" in told


def test_samples_of_one_metric_stand_together_behind_one_type() -> None:
    told = lines(unfinished=[Unfinished(name, "init", 1, smallest_id(NOW)) for name in "ab"])
    types = [line.split()[2] for line in told if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_age_of_the_oldest_message_is_that_at_the_time_of_the_page() -> None:
    told = lines(unfinished=[Unfinished("a", "init", 1, smallest_id(NOW - 0.5))])
    assert 'orderchain_outbox_oldest_seconds{destination="a",status="init"} 0.5' in told


def test_relay_exports_every_counter_under_the_name_that_a_service_gives_it() -> None:
    names = {metric.name for metric in METRICS}
    assert names == {f"orderchain_outbox_relay_{field.name}_total" for field in fields(RelayStats)}
    for metric in METRICS:
        for sample in metric.samples(RelayStats(), {}):
            assert f"{sample.name} 0" in lines(counters={"relay": RelayStats()})
