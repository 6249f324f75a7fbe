"""How long a slave that is empty takes to get everything from a master that is at rest.

Invariant: a round counts only when the slave has ended where the master ends.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time

from hourglass_loadtest.measure.errors import MeasureError
from hourglass_loadtest.workload import Workload
from hourglass_local.cluster import Cluster
from hourglass_local.probes import ReplicaProbe
from hourglass_local.process import MIB

CATCH_UP_S_MAX = 120.0
LOOK_INTERVAL_S = 0.02


async def measure_catch_up(cluster: Cluster, workload: Workload) -> dict[str, float]:
    """Medians of all rounds: `catch_up_s` from the launch of the slave's process, `catch_up_mib_per_s` from its first
    bytes on. Raises MeasureError, ProcessError.
    """
    (master,), (slave,) = cluster.broker_addresses, cluster.slaves
    async with ReplicaProbe(master) as probe:
        if (status := await probe.status()) is None or not status.log_end:
            raise MeasureError("the master does not answer, or has nothing")
    rounds = []
    for _ in range(workload.rounds):
        shutil.rmtree(cluster.store_folder(slave), ignore_errors=True)
        rounds.append(await _catch_up(cluster, status.log_end))
        await slave.terminate()
    seconds, rates = zip(*rounds, strict=True)
    return {
        "log_mib": status.log_end / MIB,
        "catch_up_s": statistics.median(seconds),
        "catch_up_max_s": max(seconds),
        "catch_up_mib_per_s": statistics.median(rates),
    }


async def _catch_up(cluster: Cluster, log_end: int) -> tuple[float, float]:
    """Seconds, and MiB a second."""
    (address,), (slave,) = cluster.slave_addresses, cluster.slaves
    launched = time.perf_counter()
    slave.launch()
    first: tuple[float, int] | None = None  # when it was first seen with something, and how much
    async with ReplicaProbe(address) as probe:
        while (now := time.perf_counter()) < launched + CATCH_UP_S_MAX:
            status = await probe.status()
            if status is not None and status.log_end:
                first = first or (now, status.log_end)
                if status.log_end >= log_end:
                    return now - launched, _rate(log_end - first[1], now - first[0])
            await asyncio.sleep(LOOK_INTERVAL_S)
    raise MeasureError(f"the slave had not all {log_end:,} bytes after {CATCH_UP_S_MAX:.0f} s")


def _rate(size: int, seconds: float) -> float:
    """MiB a second; 0.0 when everything was there at the first look."""
    return size / MIB / seconds if seconds else 0.0
