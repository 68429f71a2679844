"""Alerts, dashboard and documents name the metrics that the code exports."""

import json
import re
import shutil
from itertools import chain
from typing import Any

import pytest
import yaml

from chain_kernel.monitoring import METRICS_AGE, READY
from chainctl.commands.verifier import seal
from matcher_receiver import stats as receiver
from outbox import acts
from outbox.consumer import config as consumer
from outbox.sender import config as relay
from sequencer import stats as sequencer
from sequencer.intake import topic
from tests.cases import case
from tests.programs import output_of
from tests.sources import ROOT

ALERTS = ROOT / "deploy/monitoring/alerts.yml"
DASHBOARD = ROOT / "deploy/monitoring/dashboard.json"
OPERATIONS = ROOT / "docs/operations.md"

PARTS = (sequencer, topic, receiver, relay, consumer, seal)
EXPORTED = [
    READY, METRICS_AGE, relay.WAITING, *acts.METRICS,
    *chain.from_iterable(part.METRICS for part in PARTS),
]  # fmt: skip
SERIES = {
    metric.name + suffix
    for metric in EXPORTED
    for suffix in (("", "_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
}

NAME = re.compile(r"\borderchain_[a-z_]+\b")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_no_metric_is_exported_twice_and_names_say_their_kind() -> None:
    names = [metric.name for metric in EXPORTED]
    assert len(names) == len(set(names))
    for metric in EXPORTED:
        assert metric.name.endswith("_total") is (metric.kind == "counter"), metric.name
        has_unit = metric.name.endswith(("_seconds", "_orders"))
        assert metric.kind != "histogram" or has_unit, metric.name
        assert metric.help.endswith("."), metric.name


def test_alerts_ask_for_metrics_that_are_exported_and_have_a_line_in_the_runbook() -> None:
    for rule in rules():
        with case(rule["alert"]):
            asked = set(NAME.findall(rule["expr"]))
            assert asked or rule["expr"].startswith("up{")  # which Prometheus itself exports
            assert asked <= SERIES
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["annotations"]["summary"]
    named = re.findall(r"^\| `(Orderchain[A-Za-z]+)` \|", OPERATIONS.read_text(), re.MULTILINE)
    assert set(named) == {rule["alert"] for rule in rules()}


def test_each_alert_is_made_to_fire_by_a_test_over_a_real_prometheus() -> None:
    tests = (ROOT / "tests/integration").rglob("test_*alerts.py")
    made = {
        alert
        for test in tests
        for alert in re.findall(r'(?:alarm|until_fires)\(\s*"(\w+)"', test.read_text())
    }
    assert made == {rule["alert"] for rule in rules()}


def test_dashboard_and_guide_ask_for_metrics_that_are_exported() -> None:
    for query in queries():
        asked = set(NAME.findall(query))
        assert asked, query
        assert asked <= SERIES, query
    named = set(NAME.findall(OPERATIONS.read_text()))
    assert named
    assert named <= SERIES


def test_rules_are_those_that_prometheus_reads() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (Debian: apt-get install prometheus): only names are checked")
    # And the rules that it names.
    output_of(promtool, "check", "config", ALERTS.with_name("prometheus.yml"))
