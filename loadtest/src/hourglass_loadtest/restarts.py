"""How long restarts and catching up take."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time

from hourglass_loadtest.measure.broker_meter import BrokerMeter
from hourglass_loadtest.measure.errors import MeasureError
from hourglass_loadtest.workload import Workload
from hourglass_local.cluster import Cluster
from hourglass_local.probes import ReplicaProbe
from hourglass_local.process import MIB, ManagedProcess
from mqclient import Admin

# ----------------------------------------------------------------------------------------------------------------------
# How long a slave that is empty takes to get everything from a master that is at rest.
#
# Invariant: a round counts only when the slave has ended where the master ends.


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


# ----------------------------------------------------------------------------------------------------------------------
# Starts of the broker while very many messages wait: after a clean stop, and after a kill.
#
# The broker is killed when it is at rest. What a start takes that has to read the end of the log again depends on the
# time of the last checkpoint, and is the subject of a microbenchmark (bench_recovery.py).
#
# Invariant: a start counts only when every message still waits after it.


START_TIMEOUT_S = STOP_TIMEOUT_S = 120.0
TIMER_LEVEL = -1  # of messages with a time of their own, in the broker's status
AT_WORK_INTERVAL_S, AT_WORK_SHARE = 0.5, 0.1  # a process that uses less of one core than this is at rest
AT_WORK_S_MAX = 120.0


async def timed_start(broker: ManagedProcess) -> float:
    """Seconds from the launch until it serves and a name server knows it; steps of 50 ms, its imports included."""
    begin = time.perf_counter()
    await broker.start(START_TIMEOUT_S)
    return time.perf_counter() - begin


async def measure_restarts(cluster: Cluster, workload: Workload) -> dict[str, float]:
    """`work_..` are processor seconds until it is at rest. Raises MeasureError, MQClientError, ProcessError."""
    (broker,) = cluster.brokers
    begin = time.perf_counter()
    await broker.terminate(STOP_TIMEOUT_S)
    metrics = {"stop_s": time.perf_counter() - begin}
    metrics |= await _start(cluster, workload, "stop")
    metrics["rss_restarted_mib"] = BrokerMeter(broker.pid).rss_mib()
    await broker.kill()
    return metrics | await _start(cluster, workload, "kill")


async def _start(cluster: Cluster, workload: Workload, after: str) -> dict[str, float]:
    (broker,) = cluster.brokers
    start_s = await timed_start(broker)
    await _require_waiting(cluster, workload)
    return {f"start_after_{after}_s": start_s, f"work_after_{after}_s": await _come_to_rest(broker)}


async def _require_waiting(cluster: Cluster, workload: Workload) -> None:
    level = workload.delay_level or TIMER_LEVEL
    async with Admin(cluster.url) as admin:
        (status,) = await admin.broker_statuses()
    waiting = sum(one.waiting for one in status.delay_levels if one.level == level)
    if waiting != workload.messages:
        raise MeasureError(f"{waiting:,} of {workload.messages:,} messages wait after the broker's start")


async def _come_to_rest(broker: ManagedProcess) -> float:
    """Processor seconds from the start of the process until it has nothing left to do. Raises MeasureError."""
    meter, deadline = BrokerMeter(broker.pid), time.monotonic() + AT_WORK_S_MAX
    used_s = meter.cpu_seconds()
    while True:
        await asyncio.sleep(AT_WORK_INTERVAL_S)
        before_s, used_s = used_s, meter.cpu_seconds()
        if used_s - before_s < AT_WORK_SHARE * AT_WORK_INTERVAL_S:
            return used_s
        if time.monotonic() > deadline:
            raise MeasureError(f"{broker.name} was still at work {AT_WORK_S_MAX:.0f} s after its start")
