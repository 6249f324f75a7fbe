"""The guard of the hot path: the opcodes that each microbenchmark executes, beside those of a stored run.

Times differ from machine to machine and from run to run; these counts differ with the code and the version of Python.
A benchmark that needs more than `MORE_ALLOWED` more for one unit of its work than the stored run fails the guard, and
so does one that the stored run does not know. A change that is meant stores its own counts (`--store`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hourglass_loadtest.machine import describe_run, write_evidence
from hourglass_loadtest.micro import QUICK_SCALE, SCALE_VARIABLE
from hourglass_loadtest.run import RunError

MORE_ALLOWED = 0.03
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Guarded:
    """Opcodes for one `unit`, now and in the stored run; None where that does not have the benchmark."""

    name: str
    unit: str
    opcodes: float
    stored: float | None

    @property
    def more(self) -> float | None:
        """How much more than stored, 0.1 for 10 %."""
        return None if self.stored is None else self.opcodes / self.stored - 1

    @property
    def is_in_order(self) -> bool:
        return self.more is not None and self.more <= MORE_ALLOWED


def run_guard(folder: Path, evidence: Path, console: Console, *, store: bool) -> bool:
    """Count, print the table, and say whether nothing has become more; with `store`, keep the counts in `evidence`.

    Raises RunError when a benchmark fails, or when nothing is stored for this version of Python.
    """
    head = describe_run()
    counted = count_opcodes(folder)
    if store:
        write_evidence(evidence, head | {"python": PYTHON, "results": counted}, console)
        return True
    rows = compare(counted, stored_counts(evidence))
    print_table(console, rows)
    return all(row.is_in_order for row in rows)


def count_opcodes(folder: Path) -> dict[str, dict[str, Any]]:
    """Unit and opcodes of each benchmark, by name. Raises RunError."""
    with TemporaryDirectory(prefix="hourglass-guard-") as temporary:
        counts = Path(temporary) / "opcodes.json"
        command = [
            sys.executable, "-m", "pytest", "-c", str(folder / "pytest.ini"), str(folder),
            "-p", "no:benchmark", "-p", "hourglass_loadtest.counting", f"--opcodes={counts}",
        ]  # fmt: skip
        environment = os.environ | {SCALE_VARIABLE: str(QUICK_SCALE), "PYTHONHASHSEED": "0"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if run.returncode:
            raise RunError(f"the microbenchmarks ended with {run.returncode}:\n{run.stdout}{run.stderr}")
        return dict(json.loads(counts.read_text(encoding="utf-8")))


def stored_counts(evidence: Path) -> dict[str, dict[str, Any]]:
    """Those of the stored run. Raises RunError."""
    try:
        document = json.loads(evidence.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{evidence} is not there; make it with --store") from None
    if document["python"] != PYTHON:
        raise RunError(
            f"{evidence} has the counts of Python {document['python']}; those of {PYTHON} differ: store them there "
            "first, from a commit that is known to be good"
        )
    return dict(document["results"])


def compare(counted: Mapping[str, Mapping[str, Any]], stored: Mapping[str, Mapping[str, Any]]) -> list[Guarded]:
    """A row for each benchmark that was counted."""
    return [
        Guarded(name, one["unit"], one["opcodes"], stored[name]["opcodes"] if name in stored else None)
        for name, one in counted.items()
    ]


def print_table(console: Console, rows: list[Guarded]) -> None:
    """Every benchmark, and what is not in order."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("microbenchmark", no_wrap=True)
    table.add_column("of each", no_wrap=True)
    for title in ("opcodes", "stored", "more"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        more = "new" if row.more is None else f"{row.more:+.1%}"
        stored = "" if row.stored is None else f"{row.stored:,.1f}"
        colour = "" if row.is_in_order else "[red]"
        table.add_row(row.name, row.unit, f"{row.opcodes:,.1f}", stored, f"{colour}{more}")
    console.print(table)
    for row in rows:
        if row.more is None:
            console.print(f"{row.name} is new: store its count with --store", soft_wrap=True)
        elif not row.is_in_order:
            console.print(
                f"{row.name} executes {row.more:.1%} more opcodes for each {row.unit}; {MORE_ALLOWED:.0%} are allowed",
                soft_wrap=True,
            )
