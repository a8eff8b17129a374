"""Alerts and dashboards use the metrics that there are, and all of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
import yaml

from relay.observe.consumer_metrics import CONSUMER_CATALOGUE
from relay.observe.metrics import CATALOGUE
from relay.observe.verifier import VERIFIER_CATALOGUE
from tests.deploy import ALERT_TESTS, ALERTS, DEPLOY
from tests.deploy.dashboards import dashboards

METRICS = {metric.name: metric for metric in (*CATALOGUE, *CONSUMER_CATALOGUE, *VERIFIER_CATALOGUE)}
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]


def metrics_in(query: str) -> set[str]:
    """Return the metrics that a query names; a part of a histogram stands for it."""
    found = set()
    for name in re.findall(r"\brelay_\w+", query):
        whole = re.sub(r"_(bucket|sum|count)$", "", name)
        found.add(whole if whole in METRICS and METRICS[whole].buckets else name)
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_is_about_a_metric_that_exists_and_says_what_to_do(rule: dict[str, Any]) -> None:
    assert metrics_in(rule["expr"])
    assert metrics_in(rule["expr"]) <= METRICS.keys()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    for name in re.findall(r"\brelay_\w+", rule["annotations"]["runbook"]):
        assert name in METRICS


def test_each_alert_is_seen_to_be_raised_by_the_tests_of_promtool() -> None:
    tests = [
        test for group in yaml.safe_load(ALERT_TESTS.read_text())["tests"] for test in group.get("alert_rule_test", ())
    ]
    raised = {test["alertname"] for test in tests if test["exp_alerts"]}
    assert raised == {rule["alert"] for rule in RULES}


def test_every_metric_is_on_a_dashboard_and_every_query_is_about_one() -> None:
    queries = [
        target["expr"]
        for path in (DEPLOY / "grafana").glob("*.json")
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    assert set().union(*map(metrics_in, queries)) == METRICS.keys()


def test_the_dashboards_are_those_that_the_script_writes() -> None:
    """Else run ``python -m tests.deploy.dashboards``."""
    written = {path.name: path.read_text() for path in (DEPLOY / "grafana").glob("*.json")}
    assert written == dashboards()


@pytest.mark.parametrize("name", dashboards())
def test_the_panels_of_a_dashboard_have_their_own_ids_and_places(name: str) -> None:
    found = json.loads((DEPLOY / "grafana" / name).read_text())
    assert max(Counter(panel["id"] for panel in found["panels"]).values()) == 1
    cells = Counter(
        (x, y)
        for panel in found["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(cells.values()) == 1
    assert max(x for x, _ in cells) < 24
