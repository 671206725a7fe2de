# SPDX-License-Identifier: Apache-2.0
"""Dashboard and alerts against the table of metrics: nothing asks for a number that nobody tells.

That Prometheus takes them all is shown by ``make monitoring-test``.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from nodeagent.model.resource import ReasonCode
from nodeagent.render import metrics
from tests import ROOT

MONITORING = ROOT / "packaging/monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
KNOWN = {metric.name: metric for metric in metrics.METRICS}
FOREIGN = {"up"}  # Prometheus' own


def asked(text: str) -> set[str]:
    """The metrics in a query, without what a histogram adds to its name."""
    names = re.findall(r"\b(?:nodeagent|process)_[a-z_]+", text)
    return {re.sub(r"_bucket$", "", name) for name in names}


def expressions() -> list[str]:
    """All queries of the dashboard and of the alerts."""
    shown = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return [*shown, *(rule["expr"] for rule in RULES)]


def test_every_number_that_is_asked_for_is_told() -> None:
    assert [query for query in expressions() if not asked(query) and "up{" not in query] == []
    assert {name for query in expressions() for name in asked(query)} - KNOWN.keys() == set()


def test_every_label_that_is_chosen_by_is_one_of_the_metrics() -> None:
    of_prometheus = {"instance", "job", "le"}
    for query in expressions():
        for name, inside in re.findall(r"\b((?:nodeagent|process)_[a-z_]+)\{([^}]*)\}", query):
            labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", inside))
            metric = KNOWN[re.sub(r"_bucket$", "", name)]
            assert labels <= {*metric.labels, *of_prometheus}, query


def test_reasons_that_raise_no_alert_are_reasons() -> None:
    waiting = {reason for query in expressions() for reason in re.findall(r'reason!~"([^"]*)"', query)}
    assert {each for text in waiting for each in text.split("|")} <= set(ReasonCode)


def test_every_alert_has_a_test_and_says_what_to_do() -> None:
    tests = (MONITORING / "alerts-test.yaml").read_text()
    assert [rule["alert"] for rule in RULES if rule["alert"] not in tests] == []
    for rule in RULES:
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_panels_of_the_dashboard_lie_side_by_side() -> None:
    places = [(panel["title"], *(panel["gridPos"][key] for key in "xywh")) for panel in DASHBOARD["panels"]]
    cells = [(x + dx, y + dy) for _, x, y, w, h in places for dx in range(w) for dy in range(h)]
    assert len(cells) == len(set(cells))
    assert {x for x, _ in cells} == set(range(24))
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
