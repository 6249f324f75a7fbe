"""The parts of a dashboard, as Grafana's JSON has them, so that make_dashboards.py says only what is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

PROMETHEUS = {"type": "prometheus", "uid": "prometheus"}
JAEGER = {"type": "jaeger", "uid": "jaeger"}
SCHEMA_VERSION = 39  # Grafana 11
COLUMNS = 24
RED, GREEN, ORANGE = "red", "green", "orange"


@dataclass(frozen=True)
class Panel:
    """`queries` are (PromQL, legend). `unit` is Grafana's name of it. `steps`: from which value on which colour."""

    title: str
    description: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    steps: tuple[tuple[float, str], ...] = ()
    at_least: float | None = 0

    def json(self, number: int, x: int, y: int) -> Json:
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": PROMETHEUS,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [
                {
                    "refId": chr(ord("A") + index),
                    "datasource": PROMETHEUS,
                    "expr": expression,
                    "legendFormat": legend,
                    "instant": self.kind == "stat",
                    "range": self.kind != "stat",
                }
                for index, (expression, legend) in enumerate(self.queries)
            ],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": self._options(),
        }

    def _defaults(self) -> Json:
        steps = [{"value": None, "color": GREEN}, *({"value": value, "color": color} for value, color in self.steps)]
        defaults: Json = {"unit": self.unit, "thresholds": {"mode": "absolute", "steps": steps}}
        if self.at_least is not None:
            defaults["min"] = self.at_least
        if self.kind == "timeseries":
            defaults["custom"] = {
                "lineWidth": 1,
                "fillOpacity": 30 if self.stacked else 10,
                "showPoints": "never",
                "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
                "thresholdsStyle": {"mode": "dashed" if self.steps else "off"},
            }
        return defaults

    def _options(self) -> Json:
        if self.kind == "stat":
            calculation = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"reduceOptions": calculation, "colorMode": "value", "graphMode": "none", "textMode": "auto"}
        return {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }


@dataclass(frozen=True)
class Row:
    """Panels from left to right, in as many lines as their widths need."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice above the dashboard: the values that `label` has in `metric`."""

    name: str
    title: str
    metric: str
    label: str

    def json(self) -> Json:
        query = f"label_values({self.metric}, {self.label})"
        return {
            "name": self.name,
            "label": self.title,
            "type": "query",
            "datasource": PROMETHEUS,
            "definition": query,
            "query": {"query": query, "refId": self.name},
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "refresh": 2,  # whenever the time range changes
            "sort": 1,
        }


@dataclass(frozen=True)
class Dashboard:
    """One file."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = field(default=())

    def json(self) -> Json:
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["hourglass"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": False,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "links": [
                {
                    "type": "dashboards",
                    "title": "Hourglass",
                    "tags": ["hourglass"],
                    "asDropdown": False,
                    "keepTime": True,
                }
            ],
            "templating": {"list": [variable.json() for variable in self.variables]},
            "panels": list(self._panels()),
        }

    def _panels(self) -> list[Json]:
        placed: list[Json] = []
        y = 0
        for row in self.rows:
            placed.append(
                {
                    "id": len(placed) + 1,
                    "type": "row",
                    "title": row.title,
                    "collapsed": False,
                    "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
                    "panels": [],
                }
            )
            x, y, line_height = 0, y + 1, 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y, line_height = 0, y + line_height, 0
                placed.append(panel.json(len(placed) + 1, x, y))
                x, line_height = x + panel.width, max(line_height, panel.height)
            y += line_height
        return placed


def quantiles(metric: str, *, by: str = "", where: str = "", legend: str = "") -> tuple[tuple[str, str], ...]:
    """p50, p95 and p99 of a histogram; `by` labels apart, of the series that `where` chooses."""
    return tuple(
        (quantile(share, metric, by=by, where=where), f"{legend} {name}".strip())
        for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    )


def quantile(share: float, metric: str, *, by: str = "", where: str = "", range_: str = "$__rate_interval") -> str:
    """One quantile of a histogram."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{where}}}[{range_}])))"


def rate(metric: str, *, by: str = "", where: str = "", per_minute: bool = False) -> str:
    """How often, a second or a minute."""
    factor = "60 * " if per_minute else ""
    grouping = f" by ({by})" if by else ""
    return f"{factor}sum{grouping} (rate({metric}{{{where}}}[$__rate_interval]))"
