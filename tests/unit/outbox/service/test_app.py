"""The page for Prometheus, without a service."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

import pytest

from chain_kernel.monitoring import metrics_of
from outbox.acts import Unfinished
from outbox.callback.callback_service import METRICS as CALLBACK_METRICS
from outbox.callback.callback_service import CallbackStats
from outbox.message import smallest_id
from outbox.sender.config import METRICS, WAITING, RelayConfig, RelayStats
from outbox.service.app import MessageApp
from outbox.service.config import Clients, ServiceConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_kernel.monitoring import Sample

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.acts.time.time", lambda: NOW)


def lines(
    stats: RelayStats | None = None, unfinished: Sequence[Unfinished] | None = ()
) -> list[str]:
    def samples() -> Iterator[Sample]:
        for metric in METRICS:
            yield from metric.samples(stats or RelayStats(sent=5), {})
        yield from WAITING.samples(2, {})

    config = ServiceConfig(relay=RelayConfig(database="postgresql://d", kafka="k:1"))
    desk = cast("Any", None)
    app = MessageApp(config, Clients([]), desk)
    app.refusals.update({"too_much": 3})
    return metrics_of(app._figures(samples(), unfinished)).body.decode().splitlines()


def test_every_counter_is_reported_with_its_type() -> None:
    shown = lines()
    assert "# TYPE orderchain_outbox_relay_sent_total counter" in shown
    assert "orderchain_outbox_relay_sent_total 5.0" in shown
    assert "orderchain_outbox_relay_swept_total 0.0" in shown
    assert "orderchain_outbox_waiting 2.0" in shown
    assert 'orderchain_outbox_refusals_total{error="too_much"} 3.0' in shown


def test_counter_by_reason_has_a_sample_for_each_reason() -> None:
    stats = RelayStats()
    stats.bad_confirms.update({"too long": 2, "no header": 1})
    shown = lines(stats)
    assert 'orderchain_outbox_relay_bad_confirms_total{reason="too long"} 2.0' in shown
    assert 'orderchain_outbox_relay_bad_confirms_total{reason="no header"} 1.0' in shown


def test_database_that_is_away_leaves_its_figures_out() -> None:
    shown = lines(unfinished=None)
    assert "orderchain_outbox_database_up 0.0" in shown
    assert not any("orderchain_outbox_deliveries" in line for line in shown)
    assert "orderchain_outbox_relay_sent_total 5.0" in shown


def test_age_of_the_oldest_message_is_that_at_the_time_of_the_page() -> None:
    shown = lines(unfinished=[Unfinished("a", "init", 1, smallest_id(NOW - 0.5))])
    assert 'orderchain_outbox_oldest_seconds{destination="a",status="init"} 0.5' in shown


def test_relay_exports_every_counter_under_the_name_that_a_service_gives_it() -> None:
    for part, metrics, kind in (
        ("relay", METRICS, RelayStats), ("callback", CALLBACK_METRICS, CallbackStats),
    ):  # fmt: skip
        names = {metric.name for metric in metrics}
        assert names == {f"orderchain_outbox_{part}_{each.name}_total" for each in fields(kind)}
