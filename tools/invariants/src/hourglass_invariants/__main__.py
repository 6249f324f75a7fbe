"""`python -m hourglass_invariants`: ask every check about one shop, and print a table or one JSON document.

Exit codes: 0 all invariants hold, 1 some do not, 2 unknown (wrong usage, no database, another schema).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hourglass_invariants.checking import COMPLETION_AFTER_MS, GRACE_MS, CheckResult, Sources, Violation, run_checks
from hourglass_invariants.wanted import InvariantsError

VIOLATED = 1
UNKNOWN = 2
ROWS_MAX = 20  # so many rows of a check in a table; the JSON document has all

URL = "URL"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    orders: Annotated[str, typer.Option(metavar=URL, help="The database of orders, as ORDERS_DATABASE_URL names it.")],
    payments: Annotated[str, typer.Option(metavar=URL, help="The database of payments.")],
    gateway: Annotated[str, typer.Option(metavar=URL, help="The database of the sandbox gateway.")],
    grace_s: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="How long something may be under way.")
    ] = GRACE_MS // 1000,
    completion_after_s: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="When shipped orders complete: ORDERS_COMPLETION_AFTER_MS.")
    ] = COMPLETION_AFTER_MS // 1000,
    stock: Annotated[
        list[str] | None,
        typer.Option(metavar="PRODUCT=UNITS", help="How many units of a product were ever put on sale; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """Ask the standing invariants of the shop about its databases, which are only read.

    A URL is sqlite+aiosqlite:///<file> or postgresql+asyncpg://user:password@host:port/database.
    """
    now_ms = time.time_ns() // 1_000_000
    checking = run_checks(
        Sources(orders, payments, gateway),
        now_ms,
        grace_ms=grace_s * 1000,
        completion_after_ms=completion_after_s * 1000,
        stock=_parse_stock(stock or []),
    )
    try:
        results = asyncio.run(checking)
    except InvariantsError as error:
        typer.echo(f"invariants: {error}", err=True)
        raise typer.Exit(UNKNOWN) from None
    if as_json:
        typer.echo(as_document(results, now_ms))
    else:
        show(results, Console())
    if any(result.violations for result in results):
        raise typer.Exit(VIOLATED)


def _parse_stock(texts: list[str]) -> dict[str, int]:
    units_of = {}
    for text in texts:
        product_id, _, units = text.rpartition("=")
        if not product_id or not (units.isascii() and units.isdigit()):
            raise typer.BadParameter(f"{text!r}; allowed is PRODUCT=UNITS, such as seat=10", param_hint="--stock")
        units_of[product_id] = int(units)
    return units_of


def as_document(results: Sequence[CheckResult], now_ms: int) -> str:
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


if __name__ == "__main__":
    app(prog_name="python -m hourglass_invariants")
