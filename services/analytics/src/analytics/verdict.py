"""What the program says at its end, and its exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

EXIT_GOOD, EXIT_FOUND = 0, 1
FINDINGS_SAID_MAX = 20


def say_verdict(document: Mapping[str, Any], page: str, console: Console) -> int:
    """0 when everything adds up; else 1, and what does not, in sentences."""
    console.print(_summary(document), highlight=False, soft_wrap=True)
    console.print(f"Report: {page} (and summary.json, and the pictures)", highlight=False, soft_wrap=True)
    wrong = list(problems(document))
    for sentence in wrong:
        console.print(f"FOUND: {sentence}", highlight=False, soft_wrap=True, markup=False)
    return EXIT_FOUND if wrong else EXIT_GOOD


def problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Everything that is not as it has to be."""
    findings = document["findings"]
    for one in findings["first"][:FINDINGS_SAID_MAX]:
        which = ", ".join(f"{name} {one[f'{name}_id']}" for name in ("order", "payment") if one[f"{name}_id"])
        yield f"{one['kind']}: {which}: {one['detail']} (in {one['found_in']})"
    if findings["count"] > FINDINGS_SAID_MAX:
        yield f"{findings['count'] - FINDINGS_SAID_MAX:,} more, in gold/reconciliation"
    for one in document["books"]:
        if not one["equal"]:
            yield f"{one['figure']}: {one['messages']:,} in messages, {one['databases']:,} in the databases"


def _summary(document: Mapping[str, Any]) -> str:
    totals = document["totals"]
    orders, paid, closed = (sum(row[name] for row in totals) for name in ("orders", "paid", "closed"))
    revenue = " and ".join(
        f"{row['revenue_minor'] / 100:,.2f} {row['currency']}" for row in totals if row["revenue_minor"]
    )
    compared = ", all figures equal to the databases'" if document["books"] else ""
    compared = "" if any(not one["equal"] for one in document["books"]) else compared
    return (
        f"{orders:,} orders, {paid:,} paid ({revenue or 'nothing'}), {closed:,} closed;"
        f" reconciliation found {document['findings']['count']:,}{compared}."
    )
