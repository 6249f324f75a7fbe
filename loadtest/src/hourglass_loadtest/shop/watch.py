"""Second by second: what each process uses, and how far each consumer group is behind.

A group says how far it is every five seconds (MISSION L9): up to five seconds of messages in a lag have been handled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

import psutil

from hourglass_local.process import MIB
from mqclient import Admin, MQClientError

INTERVAL_S = 1.0
LAG_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Processor time since the start of the process, and resident memory now, with all children's."""

    at: float
    cpu_s: float
    rss_mib: float


@dataclass(slots=True)
class Watched:
    """`processes` by name and `lags` by group are in the order of time, which is seconds since 1970."""

    processes: dict[str, list[ProcessSample]] = field(default_factory=dict)
    lags: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    machine_cpu: list[tuple[float, float]] = field(default_factory=list)  # share of all cores

    def cpu_shares(self, name: str) -> list[tuple[float, float]]:
        """(time, share of one core since the sample before); a process that was started anew begins at zero."""
        samples = self.processes.get(name, [])
        shares = []
        for before, after in pairwise(samples):
            used = after.cpu_s - before.cpu_s if after.cpu_s >= before.cpu_s else after.cpu_s
            shares.append((after.at, used / max(1e-9, after.at - before.at)))
        return shares

    def cpu_seconds(self, name: str) -> float:
        """Of all lives of the process, while it was watched."""
        samples = self.processes.get(name, [])
        return sum(
            after.cpu_s - before.cpu_s if after.cpu_s >= before.cpu_s else after.cpu_s
            for before, after in pairwise(samples)
        )


async def watch_processes(pids: Callable[[], Mapping[str, int]], watched: Watched) -> NoReturn:
    """Sample for ever."""
    psutil.cpu_percent()  # the first one has nothing to compare with
    while True:
        now = time.time()
        watched.machine_cpu.append((now, psutil.cpu_percent() / 100))
        for name, pid in pids().items():
            if (sample := _sample(now, pid)) is not None:
                watched.processes.setdefault(name, []).append(sample)
        await asyncio.sleep(INTERVAL_S)


async def watch_lags(queue_url: str, watched: Watched) -> NoReturn:
    """Ask for ever; while no broker answers there is nothing to write down."""
    async with Admin(queue_url) as admin:
        while True:
            try:
                for group, lag in (await lags(admin)).items():
                    watched.lags.setdefault(group, []).append((time.time(), lag))
            except MQClientError:
                pass  # it is being killed, or has just been: the gap in the chart says so
            await asyncio.sleep(LAG_INTERVAL_S)


async def lags(admin: Admin) -> dict[str, int]:
    """Messages that wait, by group, over all masters. Raises MQClientError."""
    groups: set[str] = set()
    for status in await admin.broker_statuses():
        groups.update(one.group for one in await admin.subscription_groups(status.address))
    found = {}
    for group in sorted(groups):
        stats = await admin.consume_stats(group)
        if stats.queues:
            found[group] = stats.lag
    return found


def _sample(now: float, pid: int) -> ProcessSample | None:
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    ended = _ended_children_s(process)
    cpu_s, rss = ended or 0.0, 0
    for one in family:
        try:
            with one.oneshot():
                times, memory = one.cpu_times(), one.memory_info()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        cpu_s += times.user + times.system
        rss += memory.rss
    return None if ended is None else ProcessSample(now, float(cpu_s), rss / MIB)


def _ended_children_s(process: psutil.Process) -> float | None:
    """What children used that have ended, which is their parent's to count."""
    try:
        times = process.cpu_times()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
    return float(times.children_user + times.children_system)
