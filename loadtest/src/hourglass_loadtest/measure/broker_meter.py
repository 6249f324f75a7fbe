"""What the broker's process uses while the client measures."""

from __future__ import annotations

import psutil

MIB = 1024 * 1024


class BrokerMeter:
    """The process of this id."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def cpu_seconds(self) -> float:
        """Processor time since its start, in user and system mode, of all its threads."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def rss_mib(self) -> float:
        """Resident memory now."""
        return float(self._process.memory_info().rss / MIB)
