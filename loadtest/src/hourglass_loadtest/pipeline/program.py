"""One run of `python -m analytics`, watched from outside: Python, its Java, and the workers that Java starts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from hourglass_loadtest.run import RunError
from hourglass_local.process import MIB

SAMPLE_INTERVAL_S = 0.2
TIMEOUT_S = 3_600.0
ERROR_LINES = 12
JAVA, PYTHON = "java", "python"


@dataclass(slots=True)
class Watch:
    """Memory and processor time of a process and its descendants, as far as samples show them.

    Memory is resident, and what processes share is counted once: each has its part of it (Linux's PSS). Java forks
    before it starts a program, and would be counted twice for that moment.
    """

    pid: int
    peak_mib: float = 0.0
    peak_mib_of: dict[str, float] = field(default_factory=lambda: {JAVA: 0.0, PYTHON: 0.0})
    _cpu_s: dict[tuple[int, float], float] = field(default_factory=dict)  # of each process, also when it has ended

    @property
    def cpu_s(self) -> float:
        """Processor time of all of them, in user and system mode."""
        return sum(self._cpu_s.values())

    def sample(self) -> None:
        """Look once."""
        now_mib = {JAVA: 0.0, PYTHON: 0.0}
        for process in self._processes():
            try:
                times = process.cpu_times()
                self._cpu_s[process.pid, process.create_time()] = times.user + times.system
                memory = process.memory_full_info()
                now_mib[JAVA if process.name() == JAVA else PYTHON] += getattr(memory, "pss", memory.rss) / MIB
            except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended just now
                continue
        self.peak_mib = max(self.peak_mib, sum(now_mib.values()))
        for name, size in now_mib.items():
            self.peak_mib_of[name] = max(self.peak_mib_of[name], size)

    def _processes(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


async def run_analytics(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, float]]:
    """What it says in its last line if that is JSON, and what it has used. Raises RunError."""
    begin = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hourglass_local.child",  # it ends with us, however we end
        "analytics",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | dict(environment or {}),
        start_new_session=True,  # Ctrl-C in the terminal is ours alone
    )
    watch = Watch(process.pid)
    watching = asyncio.create_task(_sample(watch))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            # Not communicate(): it would close the leash.
            output, errors, code = await asyncio.gather(_read(process.stdout), _read(process.stderr), process.wait())
    except TimeoutError:
        raise RunError(f"analytics {arguments[0]} was not done after {TIMEOUT_S:.0f} s") from None
    finally:
        watching.cancel()
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if code != 0:
        end = "\n".join(errors.splitlines()[-ERROR_LINES:])
        raise RunError(f"analytics {' '.join(arguments[:2])} ended with code {code}:\n{end}")
    used = {"total_s": time.perf_counter() - begin, "cpu_s": watch.cpu_s, "memory_peak_mib": watch.peak_mib}
    used |= {f"{name}_memory_peak_mib": size for name, size in watch.peak_mib_of.items()}
    last_line = output.strip().rpartition("\n")[2]
    return json.loads(last_line) if last_line.startswith("{") else {}, used


async def _sample(watch: Watch) -> None:
    while True:
        watch.sample()
        await asyncio.sleep(SAMPLE_INTERVAL_S)


async def _read(stream: asyncio.StreamReader | None) -> str:
    if stream is None:
        raise AssertionError("both streams are pipes")
    return (await stream.read()).decode(errors="replace")
