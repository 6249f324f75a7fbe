"""Small tables as Python values."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from analytics.testing import at

Row = dict[str, Any]


def collected(table: DataFrame) -> list[Row]:
    return [row.asDict(recursive=True) for row in table.collect()]


def by(name: str, rows: list[Row]) -> dict[Any, Row]:
    found = {row[name]: row for row in rows}
    assert len(found) == len(rows), f"{name} is not unique"
    return found


def types(schema: StructType) -> list[tuple[str, str]]:
    """Names and types; whether Spark knows that a column is never null does not matter."""
    return [(column.name, column.dataType.simpleString()) for column in schema]


def naive(wall_ms: int) -> datetime:
    """As Spark hands timestamps to Python: in the machine's zone."""
    return at(wall_ms).astimezone().replace(tzinfo=None)


def ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def lines_of(order: Row) -> list[tuple[Any, ...]]:
    return [tuple(line.values()) for line in order["lines"]]
