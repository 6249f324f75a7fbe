"""What the command prints: a table of all checks with the rows that violate, or one JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hourglass_invariants.checking import CheckResult, Violation

ROWS_MAX = 20  # so many rows of a check in a table; the JSON document has all


def as_json(results: Sequence[CheckResult], now_ms: int) -> str:
    """Every check with what it has found."""
    document = {
        "now_ms": now_ms,
        "violations": sum(len(result.violations) for result in results),
        "checks": [
            asdict(result.check) | {"violations": [dict(violation.row) for violation in result.violations]}
            for result in results
        ],
    }
    for one in document["checks"]:  # type: ignore[attr-defined]
        del one["sql"]
    return json.dumps(document, indent=2, ensure_ascii=False)


def show(results: Sequence[CheckResult], console: Console) -> None:
    """A line for each check, and the rows of those that speak."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("check", "holds", "violations", "what has to hold"):
        table.add_column(name, justify="right" if name == "violations" else "left", no_wrap=name != "what has to hold")
    for result in results:
        count = len(result.violations)
        style = "bold red" if count else ""
        table.add_row(
            Text(result.check.name, style), result.check.kind, Text(str(count), style), Text(result.check.holds)
        )
    console.print(table)
    speaking = [result for result in results if result.violations]
    for result in speaking:
        _show_rows(result.check.name, result.violations, console)
    found = sum(len(result.violations) for result in speaking)
    if found:
        holding = len(results) - len(speaking)
        console.print(f"{holding} of {len(results)} invariants hold; rows that violate the others: {found}")
    else:
        console.print(f"all {len(results)} invariants hold")


def _show_rows(name: str, violations: Sequence[Violation], console: Console) -> None:
    console.print(Text(name, "bold red"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in violations[0].row:
        table.add_column(column, overflow="fold")
    for violation in violations[:ROWS_MAX]:
        table.add_row(*(Text("-" if value is None else str(value)) for value in violation.row.values()))
    console.print(table)
    if len(violations) > ROWS_MAX:
        console.print(f"and {len(violations) - ROWS_MAX} more; --json shows all")
