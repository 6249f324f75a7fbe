"""Bronze in a warehouse: what a backfill adds to it, and that nothing is ever removed from it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from analytics_rows import Row
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from analytics.jobs.bronze import BRONZE
from analytics.pipeline import run_backfill
from analytics.tables import Progress, read_since
from analytics.testing import START_MS, BronzeRows, at, bronze_dataframe
from analytics.warehouse import DAY, Warehouse

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(600)]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class FakeQueue:
    """A queue that has `rows` now."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def between(self, spark: SparkSession, begin: datetime, end: datetime | None) -> DataFrame:
        return bronze_dataframe(spark, self._rows).drop(DAY)


def fill(spark: SparkSession, warehouse: Warehouse, rows: Sequence[Row]) -> str:
    """The same backfill each time; what it says."""
    queue: Any = FakeQueue(rows)
    said = StringIO()
    with Progress(Console(file=said)) as progress:
        run_backfill(warehouse, queue, spark, progress, begin=BEGIN, end=None)
    return said.getvalue()


def offsets(spark: SparkSession, warehouse: Warehouse) -> list[int]:
    """Those of the messages in bronze, in order."""
    table = warehouse.bronze(spark)
    assert table.columns == BRONZE.names
    return sorted(row.queueOffset for row in table.select("queueOffset").collect())


def orders(count: int) -> list[Row]:
    told = BronzeRows()
    return [told.created(f"o-{number}") for number in range(count)]


def test_the_same_backfill_keeps_what_the_queue_has_deleted_since(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, rows = Warehouse(str(tmp_path)), orders(13)
    assert "10 messages that were not in bronze" in fill(spark, warehouse, rows[:10])
    assert "3 messages that were not in bronze" in fill(spark, warehouse, rows[8:])
    assert offsets(spark, warehouse) == list(range(13))
    assert "0 messages that were not in bronze" in fill(spark, warehouse, [])
    assert offsets(spark, warehouse) == list(range(13))


def test_a_backfill_adds_what_the_stream_has_not_read(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, rows = Warehouse(str(tmp_path)), orders(6)
    bronze_dataframe(spark, rows[2:4]).write.partitionBy(DAY).parquet(warehouse.events)
    assert "4 messages that were not in bronze" in fill(spark, warehouse, rows)
    assert offsets(spark, warehouse) == list(range(6))
    assert warehouse.read(spark, warehouse.backfills, BRONZE).count() == 4


def test_messages_were_all_read_since_the_last_hole_in_a_queue(spark: SparkSession) -> None:
    told = BronzeRows()
    rows = [told.created(f"o-{number}", at_ms=START_MS + number) for number in range(20)]
    other = BronzeRows("broker-b")
    rows += [other.created("o-20", at_ms=START_MS + 99)]

    def since(*left_out: int) -> datetime | None:
        return read_since(bronze_dataframe(spark, [row for number, row in enumerate(rows) if number not in left_out]))

    assert since() is None
    assert since(0) == at(START_MS + 1)
    assert since(*range(5, 13)) == at(START_MS + 13)
    assert since(0, 7, 9) == at(START_MS + 10)
