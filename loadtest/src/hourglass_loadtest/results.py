"""What a bench found, as a JSON document."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hourglass_loadtest.workload import Workload

DIGITS = 6


@dataclass(frozen=True, slots=True)
class Spread:
    """One metric over all runs of a workload."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Result:
    """All runs of one workload; every run has the same metrics."""

    workload: Workload
    runs: Sequence[dict[str, float]]

    @property
    def spreads(self) -> dict[str, Spread]:
        """By metric."""
        columns = {name: [run[name] for run in self.runs] for name in self.runs[0]}
        return {name: Spread(statistics.median(column), min(column), max(column)) for name, column in columns.items()}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "workload": self.workload.to_dict(),
            "summary": {
                name: {"median": _short(spread.median), "min": _short(spread.min), "max": _short(spread.max)}
                for name, spread in self.spreads.items()
            },
            "runs": [{name: _short(value) for name, value in run.items()} for run in self.runs],
        }


def write_results(path: Path, results: Sequence[Result], code: dict[str, Any], machine: dict[str, Any]) -> None:
    """Replace the file. Raises OSError."""
    document = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **code,
        "machine": machine,
        "results": {result.workload.name: result.to_dict() for result in results},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _short(value: float) -> float:
    return round(value, DIGITS)
