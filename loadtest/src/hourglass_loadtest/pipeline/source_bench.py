"""A topic of a real broker, full of messages, and how fast Spark reads it into nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hourglass_loadtest.measure.produce import TOPIC
from hourglass_loadtest.pipeline.program import run_analytics
from hourglass_loadtest.run import COMMIT_LOG_FILE_BYTES, RunError, run_client
from hourglass_loadtest.workload import Flush, Kind, Workload
from hourglass_local.cluster import Cluster
from hourglass_local.waiting import alongside

BODY_BYTES = 1024
IN_FLIGHT = 1_024  # so that sends go out in batches
METRICS = ("rows_per_s", "wall_s", "outside_reader_share")


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
