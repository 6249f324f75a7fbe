"""The programs of Spark that are timed: reading the queue, making silver."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hourglass_loadtest.measure.clients import TOPIC
from hourglass_loadtest.pipeline.program import run_analytics
from hourglass_loadtest.run import COMMIT_LOG_FILE_BYTES, RunError, run_client
from hourglass_loadtest.workload import Flush, Kind, Workload
from hourglass_local.cluster import Cluster
from hourglass_local.waiting import alongside

# ----------------------------------------------------------------------------------------------------------------------
# A topic of a real broker, full of messages, and how fast Spark reads it into nothing.


BODY_BYTES = 1024
IN_FLIGHT = 1_024  # so that sends go out in batches


async def measure_source(folder: Path, messages: int, runs: int, session: list[str]) -> dict[str, Any]:
    """For JSON. `session` are options of analytics. Raises RunError, ProcessError, PortInUseError."""
    cluster = Cluster(
        folder / "cluster", orders=False, flush=Flush.ASYNC_FLUSH, commit_log_file_bytes=COMMIT_LOG_FILE_BYTES
    )
    async with cluster:
        return await alongside(_measure(cluster, messages, runs, session), cluster.watch())


async def _measure(cluster: Cluster, messages: int, runs: int, session: list[str]) -> dict[str, Any]:
    fill = Workload(
        name="fill",
        kind=Kind.PRODUCE,
        messages=messages,
        warm_up_messages=0,
        in_flight=IN_FLIGHT,
        body_bytes=BODY_BYTES,
    )
    filled = await run_client(cluster.url, cluster.brokers[0].pid, fill)
    servers = ";".join(cluster.name_server_addresses)
    found, used = await run_analytics(
        ["bench", "source", "--namesrv-addr", servers, "--topic", TOPIC, "--runs", str(runs), *session]
    )
    for run in found["runs"]:
        if run["rows"] != messages:
            raise RunError(f"{run['rows']:,} rows were read of {messages:,} messages")
    return {
        "messages": messages,
        "body_bytes": BODY_BYTES,
        "queues": fill.queues,
        "fill_s": messages / filled["msg_per_s"],
        "runs": found["runs"],
        "whole_process": used,
    }


# ----------------------------------------------------------------------------------------------------------------------
# The silver job over generated events of growing number, and how what it needs grows with them.


EVENTS_OF_AN_ORDER = 6.27  # as the generator's stories have it: with both messages of its timer
SEED = 1
DAYS = 7
METRICS = ("wall_s", "cpu_s", "memory_peak_mib", "java_memory_peak_mib", "python_memory_peak_mib")


async def measure_silver(
    folder: Path, sizes: Sequence[int], runs: int, session: list[str], console: Console
) -> dict[str, Any]:
    """For JSON: each size with its runs, and the growth from the first to the last. Raises RunError."""
    found = []
    for events in sizes:
        with console.status(f"silver over {events:,} events", refresh_per_second=1):
            found.append(await _measure_size(folder / f"warehouse-{events}", events, runs, session))
    return {"seed": SEED, "days": DAYS, "sizes": found, "growth": growth(found)}


async def _measure_size(warehouse: Path, events: int, runs: int, session: list[str]) -> dict[str, Any]:
    orders = max(1, round(events / EVENTS_OF_AN_ORDER))
    where = ["--warehouse", str(warehouse), *session]
    generate = ["generate", "--orders", str(orders), "--seed", str(SEED), "--days", str(DAYS), *where]
    try:
        generated = (await run_analytics(generate))[1]
        bronze_bytes = sum(file.stat().st_size for file in (warehouse / "bronze").rglob("*.parquet"))
        done = [await run_analytics(["bench", "silver", *where]) for _ in range(runs)]
    finally:
        shutil.rmtree(warehouse, ignore_errors=True)
    results = [said | used for said, used in done]
    return {
        "events": results[0]["events"],
        "orders": results[0]["orders"],
        "bronze_mib": bronze_bytes / 2**20,
        "generate_s": generated["total_s"],
        "memory": results[0]["memory"],
        "median": {name: statistics.median(result[name] for result in results) for name in METRICS},
        "runs": [
            {name: result[name] for name in (*METRICS, "total_s")} | {"tasks": result["tasks"]} for result in results
        ],
    }


def growth(sizes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By metric: how many times as much at the last size as at the first, the exponent p of events^p that fits all
    sizes best, and what each further event costs between the first and the last. Nothing for one size.
    """
    if len(sizes) < 2:
        return {}
    events = [float(size["events"]) for size in sizes]
    grown = {}
    for name in METRICS:
        values = [float(size["median"][name]) for size in sizes]
        grown[name] = {
            "times": values[-1] / values[0],
            "events_times": events[-1] / events[0],
            "exponent": _slope([math.log(one) for one in events], [math.log(one) for one in values]),
            "per_million_events": (values[-1] - values[0]) / (events[-1] - events[0]) * 1e6,
        }
    return grown


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return statistics.linear_regression(x, y).slope
