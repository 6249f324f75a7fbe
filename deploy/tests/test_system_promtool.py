"""Prometheus itself reads its configuration, its rules and every expression, and the alerts fire when they have to."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from capabilities import which

PROMETHEUS = Path(__file__).parents[1] / "prometheus"

pytestmark = pytest.mark.needs("promtool")


def promtool(*arguments: str | Path, folder: Path = PROMETHEUS) -> tuple[int, str]:
    """(exit code, all that it says)."""
    command = [which("promtool") or "promtool", *map(str, arguments)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return run.returncode, run.stdout + run.stderr


def test_the_configuration_and_the_rules_that_it_loads_are_valid() -> None:
    code, said = promtool("check", "config", "prometheus.yml")
    assert code == 0, said
    assert f"{len(list((PROMETHEUS / 'rules').glob('*.yml')))} rule files found" in said


@pytest.mark.parametrize("path", sorted((PROMETHEUS / "tests").glob("*_test.yml")), ids=lambda path: path.stem)
def test_alerts_fire_when_they_have_to_and_not_before(path: Path) -> None:
    code, said = promtool("test", "rules", path.name, folder=path.parent)
    assert code == 0, said


def test_every_expression_of_rules_and_dashboards_is_promql(expressions: dict[str, str], tmp_path: Path) -> None:
    rules = [{"record": f"expression:{number}", "expr": text} for number, text in enumerate(expressions.values())]
    assert rules
    path = tmp_path / "expressions.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    code, said = promtool("check", "rules", path)
    assert code == 0, f"{said}\n{dict(enumerate(expressions))}"
