"""Dashboards: the files are what the program makes, and every panel can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

GRAFANA = Path(__file__).parents[1] / "grafana"

Dashboards = dict[str, dict[str, Any]]


def test_the_files_are_what_the_program_makes() -> None:
    program = "import make_dashboards, json; print(json.dumps(make_dashboards.texts()))"
    run = subprocess.run(
        [sys.executable, "-B", "-c", program], cwd=GRAFANA, capture_output=True, text=True, timeout=60, check=True
    )
    made: dict[str, str] = yaml.safe_load(run.stdout)
    found = {path.name: path.read_text(encoding="utf-8") for path in (GRAFANA / "dashboards").iterdir()}
    assert found == made, "run: python deploy/grafana/make_dashboards.py"


def test_every_panel_has_a_title_a_description_a_unit_and_a_place_of_its_own(dashboards: Dashboards) -> None:
    assert set(dashboards) == {"shop.json", "queue.json"}
    for name, dashboard in dashboards.items():
        taken: set[tuple[int, int]] = set()
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        assert len({panel["title"] for panel in panels}) == len(panels), name
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
        for panel in panels:
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["targets"], panel["title"]
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert not cells & taken, panel["title"]
            assert place["x"] + place["w"] <= 24, panel["title"]
            taken |= cells


def test_every_source_and_variable_that_a_panel_names_is_provided(dashboards: Dashboards) -> None:
    sources = yaml.safe_load((GRAFANA / "provisioning/datasources/hourglass.yaml").read_text(encoding="utf-8"))
    uids = {(one["type"], one["uid"]) for one in sources["datasources"]}
    assert uids == {("prometheus", "prometheus"), ("jaeger", "jaeger")}
    for dashboard in dashboards.values():
        variables = {one["name"] for one in dashboard["templating"]["list"]}
        named = set()
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                assert (target["datasource"]["type"], target["datasource"]["uid"]) in uids
                named |= {name for name in ("job", "broker", "group") if f"${name}" in target["expr"]}
        assert named == variables, dashboard["title"]


def test_dashboards_are_provided_where_compose_mounts_them() -> None:
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/hourglass.yaml").read_text(encoding="utf-8"))
    compose = yaml.safe_load((GRAFANA.parents[1] / "docker-compose.yml").read_text(encoding="utf-8"))
    mounts = dict(one.split(":")[:2] for one in compose["services"]["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["providers"][0]["options"]["path"]
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
