"""What the tests of operations read: alert rules, and every PromQL expression that is committed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def alert_rules() -> dict[str, dict[str, Any]]:
    """Alert -> its rule, as it stands in its file."""
    rules = [
        rule
        for path in sorted((DEPLOY / "prometheus/rules").glob("*.yml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    assert len({rule["alert"] for rule in rules}) == len(rules), "two alerts have one name"
    return {rule["alert"]: rule for rule in rules}


@pytest.fixture(scope="session")
def dashboards() -> dict[str, dict[str, Any]]:
    """File name -> dashboard."""
    paths = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


@pytest.fixture(scope="session")
def expressions(alert_rules: dict[str, dict[str, Any]], dashboards: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Where -> PromQL. Grafana's variables are replaced by a value that they may have."""
    found = {f"alert {name}": str(rule["expr"]) for name, rule in alert_rules.items()}
    for file_name, dashboard in dashboards.items():
        found |= {f"{file_name}, {where}": _without_variables(text) for where, text in _of_dashboard(dashboard)}
    return found


def _of_dashboard(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield f"{panel['title']} {target['refId']}", target["expr"]


def _without_variables(text: str) -> str:
    return text.replace("$__rate_interval", "5m").replace("$__range", "1h").replace("$", "any_")
