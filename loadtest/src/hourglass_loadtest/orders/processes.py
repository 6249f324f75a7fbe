"""Processor time of the processes that place an order: of each service, and of PostgreSQL with all its children."""

from __future__ import annotations

from collections.abc import Mapping

import psutil


class CpuMeters:
    """Processes by name, each with its children, whether they still run or have ended."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._before = self._seconds()

    def start(self) -> None:
        """Count from now."""
        self._before = self._seconds()

    def used_s(self) -> dict[str, float]:
        """Seconds since `start`, by name."""
        return {name: seconds - self._before[name] for name, seconds in self._seconds().items()}

    def _seconds(self) -> dict[str, float]:
        return {name: _with_children(process) for name, process in self._processes.items()}


def _with_children(process: psutil.Process) -> float:
    own = process.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:  # it has ended just now, and is its parent's to count
            continue
        total += times.user + times.system
    return float(total)
