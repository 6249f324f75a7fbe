"""`python -m hourglass_invariants`: ask every check about one shop.

Exit codes: 0 all invariants hold, 1 some do not, 2 nobody can tell (wrong usage, no database, another schema).
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from hourglass_invariants import report
from hourglass_invariants.adapters.system_clock import wall_ms
from hourglass_invariants.checking import COMPLETION_AFTER_MS, GRACE_MS, Sources, run_checks
from hourglass_invariants.errors import InvariantsError

VIOLATED = 1
UNKNOWN = 2

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
    now_ms = wall_ms()
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
        typer.echo(report.as_json(results, now_ms))
    else:
        report.show(results, Console())
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


if __name__ == "__main__":
    app(prog_name="python -m hourglass_invariants")
