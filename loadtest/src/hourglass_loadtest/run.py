"""Runs of a benchmark, and their results."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hourglass_loadtest.measure.errors import MeasureError
from hourglass_loadtest.restarts import measure_catch_up, measure_restarts, timed_start
from hourglass_loadtest.workload import Kind, Slave, Workload
from hourglass_local.cluster import ASYNC_MASTER, SYNC_MASTER, Cluster
from hourglass_local.process import MIB
from hourglass_local.waiting import alongside
from mqclient import MQClientError

# ----------------------------------------------------------------------------------------------------------------------
# What a bench found, as a JSON document.


DIGITS = 6


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
            "summary": {
                name: {"median": _short(spread.median), "min": _short(spread.min), "max": _short(spread.max)}
                for name, spread in self.spreads.items()
            },
            "runs": [{name: _short(value) for name, value in run.items()} for run in self.runs],
        }


def write_results(path: Path, results: Sequence[Result], code: dict[str, Any], machine: dict[str, Any]) -> None:
    """Replace the file. Raises OSError."""
    document = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **code,
        "machine": machine,
        "results": {result.workload.name: result.to_dict() for result in results},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _short(value: float) -> float:
    return round(value, DIGITS)


# ----------------------------------------------------------------------------------------------------------------------
# One run of one workload: a fresh store, name server and broker as processes, and the client as another one.


COMMIT_LOG_FILE_BYTES = 1024 * MIB  # as in production
ROLES = {Slave.NONE: None, Slave.ASYNC: ASYNC_MASTER, Slave.SYNC: SYNC_MASTER}
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
            for name, process in zip(("broker", "slave"), (broker, *cluster.slaves), strict=False)
        }


async def _measure(cluster: Cluster, workload: Workload, profiles: Profiles | None) -> dict[str, float]:
    (broker,) = cluster.brokers
    before: dict[str, float] = {}
    if workload.kind is Kind.WAITING:
        await broker.terminate()
        before["start_empty_s"] = await timed_start(broker)
    elif workload.kind is Kind.CATCH_UP:
        await cluster.slaves[0].terminate()
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
            slaves_of=ROLES[workload.slave],
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
