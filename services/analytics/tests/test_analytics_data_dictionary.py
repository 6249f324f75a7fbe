"""The data dictionary in docs/guides/pipeline.md explains each column of each table, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, StructType

from analytics.events import EVENTS, REJECTS
from analytics.jobs.bronze import BRONZE
from analytics.jobs.gold import GOLD_TABLES
from analytics.jobs.reconciliation import FINDINGS
from analytics.jobs.silver import ORDERS, PAYMENTS, TIMERS

PAGE = (Path(__file__).parents[3] / "docs/guides/pipeline.md").read_text(encoding="utf-8")
TABLES = {
    "bronze/events": BRONZE,
    "bronze/backfill": BRONZE,
    "events": EVENTS,
    "silver/rejects": REJECTS,
    "silver/orders": ORDERS,
    "silver/payments": PAYMENTS,
    "silver/timers": TIMERS,
    "gold/reconciliation": FINDINGS,
} | {f"gold/{table.name}": table.schema for table in GOLD_TABLES}


def explained() -> dict[str, list[str]]:
    """Table -> the columns that its section explains."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        heading, *lines = section.splitlines()
        columns = [name for line in lines if line.startswith("| `") for name in quoted(line.split("|")[1])]
        found |= dict.fromkeys(quoted(heading), columns)
    return found


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def columns_of(schema: StructType, prefix: str = "") -> Iterator[str]:
    for column in schema:
        yield f"{prefix}{column.name}"
        kind = column.dataType
        if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
            yield from columns_of(kind.elementType, f"{prefix}{column.name}.")


def test_every_table_has_a_section() -> None:
    assert set(explained()) == set(TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_explained_once_and_in_its_place(table: str) -> None:
    assert explained()[table] == list(columns_of(TABLES[table]))
