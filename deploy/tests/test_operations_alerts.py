"""Alerts: each says what happens and what to do first, has a runbook, and is tried in both directions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import orders.bootstrap
import orders.service.events
import payments.service.events

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs/runbooks"
RESTARTS = ROOT / "deploy/prometheus/tests/restart_test.yml"
CASES = sorted(set(RESTARTS.parent.glob("*_test.yml")) - {RESTARTS})
NAMED = re.compile(r'alertname="(\w+)"')
GROUPING = re.compile(r"\b(?:by|on) \([^)]*\)")
METRIC = re.compile(r"\b(?:(?:hourglass|http)_\w+|up|target_info)(?=[{[)\s]|$)")

Rules = dict[str, dict[str, Any]]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert(alert_rules: Rules) -> None:
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(alert_rules)
    for name, rule in alert_rules.items():
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{name}.md"


def test_every_alert_says_how_bad_it_is_what_happens_and_what_to_do(alert_rules: Rules) -> None:
    for name, rule in alert_rules.items():
        assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"}), name
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}, name
        assert len(rule["annotations"]["summary"]) < 140, name
        assert rule["annotations"]["description"].endswith("."), name


def test_every_alert_is_tried_when_it_fires_and_when_it_does_not(alert_rules: Rules) -> None:
    fires: set[str] = set()
    is_silent: set[str] = set()
    for path in CASES:
        for case in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for expected in case["promql_expr_test"]:
                (name,) = set(NAMED.findall(expected["expr"]))
                (fires if expected["exp_samples"] else is_silent).add(name)
    assert fires == set(alert_rules)
    assert is_silent == set(alert_rules)


def test_every_alert_is_tried_by_restarts_that_it_has_to_ignore(alert_rules: Rules) -> None:
    cases = yaml.safe_load(RESTARTS.read_text(encoding="utf-8"))["tests"]
    assert [one for case in cases for one in case["promql_expr_test"] if one["exp_samples"]] == []
    told = {one["series"].partition("{")[0] for case in cases for one in case["input_series"]}
    asked = {name: set(METRIC.findall(GROUPING.sub("", rule["expr"]))) for name, rule in alert_rules.items()}
    assert all(asked.values())
    assert {name: metrics - told for name, metrics in asked.items() if metrics - told} == {}


def shop_groups() -> set[str]:
    modules = (orders.service.events, payments.service.events)
    return {value for module in modules for name, value in vars(module).items() if name.endswith("_GROUP")}


@pytest.mark.parametrize("name", ["DeadLettersOfTheShop", "DeadLetters"])
def test_dead_letters_of_every_group_of_the_shop_are_critical(alert_rules: Rules, name: str) -> None:
    patterns = set(re.findall(r'messaging_consumer_group_name[=!]~"([^"]+)"', alert_rules[name]["expr"]))
    (pattern,) = patterns
    groups = shop_groups() - {orders.bootstrap.ORDER_FEED_GROUP}  # which broadcasts: nothing dies there
    assert len(groups) >= 7
    assert [group for group in groups if not re.fullmatch(pattern, group)] == []
    assert not re.fullmatch(pattern, "billing")
    for group in groups if name == "DeadLettersOfTheShop" else ():
        assert group in (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8"), group
