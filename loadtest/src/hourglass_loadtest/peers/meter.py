"""What the processes of a server and its client use: processor time, memory, and what they ask of the disk.

Resident memory is the sum of the proportional set sizes: a page that several processes share counts once. fsyncs are
counted by `perf stat` in the kernel, of fsync, fdatasync and msync, which slows nothing down; without perf, or without
the right to use it, they are not counted.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil

from hourglass_local.process import MIB

SYNC_CALLS = ("fsync", "fdatasync", "msync")
PERF_TIMEOUT_S = 10.0


def tree(pids: Iterable[int]) -> list[psutil.Process]:
    """The processes and all that they have started."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            first = psutil.Process(pid)
            found.update({process.pid: process for process in (first, *first.children(recursive=True))})
        except psutil.NoSuchProcess:  # it has ended since
            continue
    return list(found.values())


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of the processes, and of those of their children that have ended."""
    total = 0.0
    for process in tree(pids):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_mib(pids: Iterable[int]) -> float:
    """The sum of the proportional set sizes."""
    total = 0
    for process in tree(pids):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / MIB


class SyncCounter:
    """Counts calls from `start` to `stop`; one count at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, pids: Iterable[int]) -> None:
        """Harmless without perf."""
        events = ",".join(f"syscalls:sys_enter_{call}" for call in SYNC_CALLS)
        ids = ",".join(str(process.pid) for process in tree(pids))
        try:
            self._process = await asyncio.create_subprocess_exec(
                "perf", "stat", "-x", ",", "-e", events, "-p", ids,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError:
            self._process = None

    async def stop(self) -> int | None:
        """Calls since the start; None when they could not be counted."""
        process, self._process = self._process, None
        if process is None:
            return None
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(PERF_TIMEOUT_S):
                _, output = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return None
        return counted(output.decode(errors="replace"))


def counted(output: str) -> int | None:
    """The sum of what `perf stat -x ,` has printed; None when it does not have every call."""
    counts = re.findall(r"^(\d+),[^,]*,syscalls:sys_enter_\w+", output, re.MULTILINE)
    return sum(map(int, counts)) if len(counts) == len(SYNC_CALLS) else None


def filesystem(folder: Path) -> str:
    """Type and device of what `folder` lies on."""
    mounts = [one for one in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(one.mountpoint)]
    best = max(mounts, key=lambda one: len(one.mountpoint), default=None)
    return f"{best.fstype} on {best.device}" if best else "unknown"
