"""What the benchmark of POST /orders came to: a table, a JSON document, and a profile as text."""

from __future__ import annotations

import io
import json
import pstats
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hourglass_loadtest.orders.bench import Measurement

FUNCTIONS = 60
DIGITS = 3


def print_table(console: Console, results: Sequence[tuple[Measurement, Mapping[str, Any]]]) -> None:
    """One row for each measurement."""
    table = Table("POST /orders")
    for heading in ("placed/s", "p50 ms", "p99 ms", "max ms", "other answers", "timers behind s", "CPU ms an order"):
        table.add_column(heading, justify="right")
    for measurement, result in results:
        others = {status: count for status, count in result["statuses"].items() if status != "201"}
        cpu = ", ".join(f"{name} {spent:.2f}" for name, spent in result["cpu_ms_per_order"].items())
        numbers = [f"{result[name]:.1f}" for name in ("rate_per_s", "p50_ms", "p99_ms", "max_ms")]
        table.add_row(measurement.name, *numbers, str(others or "none"), f"{result['timers_behind_s']:.1f}", cpu)
    console.print(table)


def write_document(
    path: Path,
    results: Sequence[tuple[Measurement, Mapping[str, Any]]],
    code: Mapping[str, Any],
    machine: Mapping[str, Any],
) -> None:
    """Replace the file. Raises OSError."""
    document = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **code,
        "machine": machine,
        "results": [
            {"measurement": measurement.name, "seconds": measurement.seconds, **_short(result)}
            for measurement, result in results
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_profile(
    path: Path, measurement: Measurement, result: Mapping[str, Any], statistics: Path, code: Mapping[str, Any]
) -> None:
    """The functions of orders with the most time of their own, and of all. Raises OSError."""
    parts = [
        f"POST /orders, {measurement.name}\n"
        f"commit {code['commit']}{' with changes' if code['dirty'] else ''}\n"
        f"{result['placed']:,.0f} orders placed at {result['rate_per_s']:,.0f}/s with orders under cProfile, in"
        " seconds of processor time. It makes function calls several times as slow as they are: compare the shares.\n"
    ]
    for order in ("tottime", "cumulative"):
        text = io.StringIO()
        pstats.Stats(str(statistics), stream=text).strip_dirs().sort_stats(order).print_stats(FUNCTIONS)
        lines = [line.rstrip() for line in text.getvalue().splitlines() if str(statistics) not in line]
        parts.append(f"--- by {order} ---\n" + "\n".join(lines).strip() + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")


def _short(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in result.items()}
