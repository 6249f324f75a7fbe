"""The microbenchmarks: pytest-benchmark on a folder of its own, its figures as a table and as evidence.

Nothing is judged by time: the machines are noisy. A round's own checks decide whether a run has failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hourglass_loadtest.machine import describe_run, write_evidence
from hourglass_loadtest.run import RunError

SCALE_VARIABLE = "HOURGLASS_MICRO_SCALE"
FULL_SCALE, QUICK_SCALE = 1.0, 0.002
WIDTH_MIN = 124  # also where the output is no terminal
DIGITS = 4
_QUICK_OPTIONS = ("--benchmark-min-rounds=3", "--benchmark-max-time=0.02")
_FULL_OPTIONS = ("--benchmark-min-rounds=50", "--benchmark-max-time=1", "--benchmark-warmup=on")
_OWN_FIELDS = ("work", "unit", "count", "goal")


@dataclass(frozen=True, slots=True)
class MicroResult:
    """One benchmark. Times are microseconds for one `unit`; a round does `count` of them."""

    work: str
    unit: str
    count: float
    goal: str
    rounds: int
    median_us: float
    min_us: float
    max_us: float
    quartiles_us: tuple[float, float]
    extra: dict[str, Any]


def run_micro(folder: Path, out: Path | None, console: Console, *, only: str | None, quick: bool) -> None:
    """Run, print the table, and write the results to `out`. Raises RunError, OSError."""
    head = describe_run()
    scale = float(os.environ.get(SCALE_VARIABLE, QUICK_SCALE if quick else FULL_SCALE))
    with TemporaryDirectory(prefix="hourglass-micro-") as temporary:
        figures = Path(temporary) / "figures.json"
        with console.status("microbenchmarks", refresh_per_second=1):
            _run_pytest(folder, figures, only, quick=quick, scale=scale)
        results = read_figures(figures)
    print_table(console, results, head["machine"])
    if out is not None:
        found = {name: asdict(result) for name, result in results.items()}
        write_evidence(out, head | {"scale": scale, "results": found}, console)


def _run_pytest(folder: Path, figures: Path, only: str | None, *, quick: bool, scale: float) -> None:
    command = [
        sys.executable, "-m", "pytest", "-c", str(folder / "pytest.ini"), str(folder),
        "--benchmark-only", "--benchmark-quiet", f"--benchmark-json={figures}",
        *(_QUICK_OPTIONS if quick else _FULL_OPTIONS), *(["-k", only] if only else []),
    ]  # fmt: skip
    environment = os.environ | {SCALE_VARIABLE: str(scale)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RunError(f"the microbenchmarks ended with {run.returncode}:\n{run.stdout}{run.stderr}")


def read_figures(figures: Path) -> dict[str, MicroResult]:
    """What pytest-benchmark has written, by name. Raises OSError, KeyError."""
    document = json.loads(figures.read_text(encoding="utf-8"))
    return {one["name"].removeprefix("bench_"): _result(one) for one in document["benchmarks"]}


def _result(one: dict[str, Any]) -> MicroResult:
    stats, about = one["stats"], one["extra_info"]
    to_us = 1e6 / about["count"]
    return MicroResult(
        work=about["work"],
        unit=about["unit"],
        count=about["count"],
        goal=about["goal"],
        rounds=stats["rounds"],
        median_us=_short(stats["median"] * to_us),
        min_us=_short(stats["min"] * to_us),
        max_us=_short(stats["max"] * to_us),
        quartiles_us=(_short(stats["q1"] * to_us), _short(stats["q3"] * to_us)),
        extra={name: value for name, value in about.items() if name not in _OWN_FIELDS},
    )


def _short(value: float) -> float:
    return round(value, DIGITS)


def print_table(console: Console, results: Mapping[str, MicroResult], machine: Mapping[str, Any]) -> None:
    """Medians and quartiles for one message, MiB or start."""
    console.width = max(console.width, WIDTH_MIN)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("work", no_wrap=True)
    table.add_column("of each", no_wrap=True)
    for name in ("median us", "quartiles us", "rounds"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results.values():
        low, high = result.quartiles_us
        table.add_row(
            result.work,
            result.unit,
            f"{result.median_us:,.2f}",
            f"[dim]{low:,.2f}-{high:,.2f}[/dim]",
            f"{result.rounds:,}",
        )
    console.print(table)
    for line in (*filter(None, map(_remark, results.values())), _machine(machine)):
        console.print(line, highlight=False, soft_wrap=True)


def _remark(result: MicroResult) -> str | None:
    """What has no column."""
    goal = f"{result.work}: the goal is {result.goal}"
    if "many_to_few" in result.extra:
        medians = " and ".join(f"{median:,.2f}" for median in result.extra["medians_us_per_message"])
        return f"{goal}; {medians} us a message, many to few {result.extra['many_to_few']:.3f}"
    return goal if result.goal else None


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, Python {machine['python']}, "
        f"load {machine['load_average_1_min']} before"
    )
