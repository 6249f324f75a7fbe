"""What the silver job costs: bronze of a warehouse -> one row per order, as Parquet."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from analytics.benchmarks.adapters import event_log
from analytics.benchmarks.adapters.scratch import scratch_folder
from analytics.events import events, read_bodies
from analytics.jobs.silver_orders import orders
from analytics.session import SessionOptions, open_session
from analytics.warehouse import DAY, Warehouse
from osenv import RealClock

GROUP = "silver"


def measure_silver(options: SessionOptions, warehouse: Warehouse) -> dict[str, Any]:
    """For JSON. Raises WarehouseError without bronze, and what Spark raises."""
    with scratch_folder() as log:
        settings = {**options.settings, **event_log.settings(log)}
        spark = open_session("silver benchmark", replace(options, settings=settings))
        try:
            clock = RealClock()
            rows = warehouse.bronze(spark)
            spark.sparkContext.setJobGroup(GROUP, GROUP)
            begin = clock.monotonic()
            warehouse.replace(warehouse.silver("orders"), orders(events(read_bodies(rows))), [DAY])
            wall_s = clock.monotonic() - begin
            spark.sparkContext.setJobGroup("count", "count")
            counts = {"events": rows.count(), "orders": spark.read.parquet(warehouse.silver("orders")).count()}
        finally:
            spark.stop()
        tasks = event_log.read_tasks(log)[GROUP]
    return {**counts, "wall_s": wall_s, "memory": options.memory, "tasks": asdict(tasks)}
