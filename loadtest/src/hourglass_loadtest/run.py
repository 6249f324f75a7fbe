"""One benchmark: its processes, its rounds, its profiles."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pstats
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hourglass_loadtest.measure.clients import BrokerMeter, MeasureError
from hourglass_loadtest.workload import Kind, Replica, Workload
from hourglass_local.cluster import ASYNC_MASTER, SYNC_MASTER, Cluster
from hourglass_local.process import MIB, ManagedProcess, ReplicaProbe
from hourglass_local.waiting import alongside
from mqclient import Admin, MQClientError


@dataclass(frozen=True, slots=True)
class Spread:
    """One metric over all runs of a workload."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Result:
    """All runs of one workload; every run has the same metrics."""

    workload: Workload
    runs: Sequence[dict[str, float]]

    @property
    def spreads(self) -> dict[str, Spread]:
        """By metric."""
        columns = {name: [run[name] for run in self.runs] for name in self.runs[0]}
        return {name: Spread(statistics.median(column), min(column), max(column)) for name, column in columns.items()}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "workload": self.workload.to_dict(),
            "summary": {name: asdict(spread) for name, spread in self.spreads.items()},
            "runs": list(self.runs),
        }


# One run of one workload: a fresh store, name server and broker as processes, and the client as another one.

COMMIT_LOG_FILE_BYTES = 1024 * MIB  # as in production
ROLES = {Replica.NONE: None, Replica.ASYNC: ASYNC_MASTER, Replica.SYNC: SYNC_MASTER}
RUN_TIMEOUT_S = 300.0
ERROR_LINES = 10


class RunError(RuntimeError):
    """A run that gave no result; the message says why."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """Where cProfile's statistics of broker and client go."""

    broker: Path
    client: Path


async def run_once(workload: Workload, profiles: Profiles | None = None) -> dict[str, float]:
    """Metrics by name. Raises RunError, ProcessError, PortInUseError; nothing is left running then."""
    with TemporaryDirectory(prefix="hourglass-bench-") as folder:
        cluster = _BenchCluster(Path(folder), workload, profiles)
        async with cluster:
            (broker,) = cluster.brokers
            metrics = await alongside(_measure(cluster, workload, profiles), cluster.watch())
            stopped = await cluster.stop()
        if stopped.killed or stopped.failed or stopped.leftover:
            raise RunError(f"{workload.name}: the processes did not end as they should: {stopped}")
        return metrics | {
            f"{name}_rss_peak_mib": process.usage.rss_peak_bytes / MIB
            for name, process in zip(("broker", "slave"), (broker, *cluster.replicas), strict=False)
        }


async def _measure(cluster: Cluster, workload: Workload, profiles: Profiles | None) -> dict[str, float]:
    (broker,) = cluster.brokers
    before: dict[str, float] = {}
    if workload.kind is Kind.WAITING:
        await broker.terminate()
        before["start_empty_s"] = await timed_start(broker)
    elif workload.kind is Kind.CATCH_UP:
        await cluster.replicas[0].terminate()
    filled = await run_client(cluster.url, broker.pid, workload, profiles)
    try:
        return filled | before | await _afterwards(cluster, workload)
    except (MeasureError, MQClientError) as error:
        raise RunError(f"{workload.name}: {type(error).__name__}: {error}") from error


async def _afterwards(cluster: Cluster, workload: Workload) -> dict[str, float]:
    """What is measured when the client has ended."""
    if workload.kind is Kind.WAITING:
        return await measure_restarts(cluster, workload)
    if workload.kind is Kind.CATCH_UP:
        return await measure_catch_up(cluster, workload)
    return {}


class _BenchCluster(Cluster):
    """Name server and broker, the latter under cProfile if wanted."""

    def __init__(self, folder: Path, workload: Workload, profiles: Profiles | None) -> None:
        self._profiles = profiles
        super().__init__(
            folder,
            replicas_of=ROLES[workload.slave],
            orders=False,
            flush=workload.flush,
            commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
        )

    def _program(self, name: str, program: list[str]) -> list[str]:
        if self._profiles is None or name != "broker-a":
            return program
        return _profiled(self._profiles.broker, program)


def _profiled(statistics: Path, command: Sequence[str]) -> list[str]:
    """Module and arguments that run `command`, a module and its arguments, under cProfile."""
    return ["cProfile", "-o", str(statistics), "-m", *command]


async def run_client(
    url: str,
    broker_pid: int,
    workload: Workload,
    profiles: Profiles | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """The client's metrics; `environment` is added to that of this process. Raises RunError."""
    command = ["hourglass_loadtest", "client", url, str(broker_pid), json.dumps(workload.to_dict())]
    if profiles is not None:
        command = _profiled(profiles.client, command)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hourglass_local.child",  # it ends with us, however we end
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | dict(environment or {}),
        start_new_session=True,  # Ctrl-C in the terminal is ours alone
    )
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            output, errors, code = await asyncio.gather(_read(process.stdout), _read(process.stderr), process.wait())
    except TimeoutError:
        raise RunError(f"{workload.name}: the client was not done after {RUN_TIMEOUT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        end = "\n".join(errors.decode(errors="replace").splitlines()[-ERROR_LINES:])
        raise RunError(f"{workload.name}: the client ended with code {code}:\n{end}")
    metrics: dict[str, float] = json.loads(output)
    return metrics


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    if stream is None:
        raise AssertionError("all streams of the client are pipes")
    return await stream.read()


FUNCTIONS = 40


def write_profile(
    path: Path, workload: Workload, profiles: Profiles, metrics: Mapping[str, float], code: Mapping[str, Any]
) -> None:
    """The functions with the most time of their own. Raises OSError."""
    head = (
        f"{workload.name}: {workload.description}\n"
        f"commit {code['commit']}{' with changes' if code['dirty'] else ''}\n"
        f"{workload.messages:,} messages of {workload.body_bytes:,} bytes, {metrics['msg_per_s']:,.0f} msg/s under "
        "cProfile, which makes function calls several times as slow as they are: compare the shares, not the times.\n"
    )
    parts = [head]
    for name, profile in (("broker", profiles.broker), ("client", profiles.client)):
        text = io.StringIO()
        pstats.Stats(str(profile), stream=text).strip_dirs().sort_stats("tottime").print_stats(FUNCTIONS)
        lines = [line.rstrip() for line in text.getvalue().splitlines() if str(profile) not in line]
        parts.append(f"--- {name} ---\n" + "\n".join(lines).strip() + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")


# How long a replica that is empty takes to get everything from a master that is at rest.
#
# Invariant: a round counts only when the replica has ended where the master ends.

CATCH_UP_S_MAX = 120.0
LOOK_INTERVAL_S = 0.02


async def measure_catch_up(cluster: Cluster, workload: Workload) -> dict[str, float]:
    """Medians of all rounds: `catch_up_s` from the launch of the replica's process, `catch_up_mib_per_s` from its first
    bytes on. Raises MeasureError, ProcessError.
    """
    (master,), (replica,) = cluster.broker_addresses, cluster.replicas
    async with ReplicaProbe(master) as probe:
        if (status := await probe.status()) is None or not status.log_end:
            raise MeasureError("the master does not answer, or has nothing")
    rounds = []
    for _ in range(workload.rounds):
        shutil.rmtree(cluster.store_folder(replica), ignore_errors=True)
        rounds.append(await _catch_up(cluster, status.log_end))
        await replica.terminate()
    seconds, rates = zip(*rounds, strict=True)
    return {
        "log_mib": status.log_end / MIB,
        "catch_up_s": statistics.median(seconds),
        "catch_up_max_s": max(seconds),
        "catch_up_mib_per_s": statistics.median(rates),
    }


async def _catch_up(cluster: Cluster, log_end: int) -> tuple[float, float]:
    """Seconds, and MiB a second."""
    (address,), (replica,) = cluster.replica_addresses, cluster.replicas
    launched = time.perf_counter()
    replica.launch()
    first: tuple[float, int] | None = None  # when it was first seen with something, and how much
    async with ReplicaProbe(address) as probe:
        while (now := time.perf_counter()) < launched + CATCH_UP_S_MAX:
            status = await probe.status()
            if status is not None and status.log_end:
                first = first or (now, status.log_end)
                if status.log_end >= log_end:
                    return now - launched, _rate(log_end - first[1], now - first[0])
            await asyncio.sleep(LOOK_INTERVAL_S)
    raise MeasureError(f"the replica had not all {log_end:,} bytes after {CATCH_UP_S_MAX:.0f} s")


def _rate(size: int, seconds: float) -> float:
    """MiB a second; 0.0 when everything was there at the first look."""
    return size / MIB / seconds if seconds else 0.0


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
