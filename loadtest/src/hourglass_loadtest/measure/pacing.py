"""Doing things at times that were fixed before, however long they take.

A thread paces them, because the event loop's timers are whole milliseconds.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any


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
