"""What every measurement uses: processor time and memory of the broker, percentiles, pace, the error."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import psutil

# ----------------------------------------------------------------------------------------------------------------------
# A measurement that means nothing.


class MeasureError(RuntimeError):
    """What was to be measured did not happen; the message says what did."""


# ----------------------------------------------------------------------------------------------------------------------
# What the broker's process uses while the client measures.


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


# ----------------------------------------------------------------------------------------------------------------------
# What a message costs the two processes that have to do with it.


class CpuUse:
    """Processor time of broker and client, in user and system mode, of all their threads, since this was made."""

    def __init__(self, broker: BrokerMeter) -> None:
        self._broker = broker
        self._broker_begin, self._client_begin = broker.cpu_seconds(), time.process_time()

    def per_1000(self, messages: int) -> dict[str, float]:
        """Seconds for 1,000 messages when there were so many; the broker's clock has steps of 10 ms."""
        broker_s, client_s = self._broker.cpu_seconds() - self._broker_begin, time.process_time() - self._client_begin
        return {
            "broker_cpu_s_per_1000": broker_s / messages * 1000,
            "client_cpu_s_per_1000": client_s / messages * 1000,
        }


# ----------------------------------------------------------------------------------------------------------------------
# Percentiles of what was measured.


def percentile(values: Sequence[float], percent: float) -> float:
    """By nearest rank: the smallest value that at least `percent` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def latency_metrics(seconds: Sequence[float], prefix: str = "") -> dict[str, float]:
    """p50, p99 and the largest, in milliseconds."""
    return {
        f"{prefix}p50_ms": percentile(seconds, 50) * 1000,
        f"{prefix}p99_ms": percentile(seconds, 99) * 1000,
        f"{prefix}max_ms": max(seconds) * 1000,
    }


# ----------------------------------------------------------------------------------------------------------------------
# Doing things at times that were fixed before, however long they take.
#
# A thread paces them, because the event loop's timers are whole milliseconds.


async def start_on_time(times: Iterable[float], work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Start `work(0)`, `work(1)`.. at these times of perf_counter, however many still run; return when all are done.

    Raises an ExceptionGroup of what they raise; then, and when this is cancelled, no more are started.
    """
    loop, given_up = asyncio.get_running_loop(), threading.Event()
    try:
        async with asyncio.TaskGroup() as works:

            def begin(number: int) -> None:
                if not given_up.is_set():
                    works.create_task(work(number))

            await asyncio.to_thread(
                _pace, times, lambda number: loop.call_soon_threadsafe(begin, number), given_up.is_set
            )
    finally:
        given_up.set()


def _pace(times: Iterable[float], start: Callable[[int], object], given_up: Callable[[], bool]) -> None:
    """Call `start` with each number at its time; in a thread of its own."""
    for number, due in enumerate(times):
        while (rest := due - time.perf_counter()) > 0:
            time.sleep(rest)
        if given_up():
            return
        start(number)
