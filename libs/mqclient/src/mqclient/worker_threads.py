"""Threads for what must not hold up the event loop, which above all is the application's own functions.

Invariants: at most `count_max` functions run at once; no thread is started while one is idle; a thread ends when it has
done its work after `close`, and holds up nobody who leaves: a function that hangs is left behind, and reported.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from mqclient.errors import IllegalStateError
from mqclient.thread_calls import call_for
from osenv import RealClock
from telemetry.context import in_this_span

logger = logging.getLogger("mqclient.worker_threads")

P = ParamSpec("P")
T = TypeVar("T")


class WorkerThreads:
    """Threads called `name` and a number. Daemons: the interpreter's exit does not wait for them."""

    def __init__(self, name: str, count_max: int) -> None:
        self._name = name
        self._count_max = count_max
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._idle = 0
        self._waiting = 0
        self._functions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns or raises, run when a thread is free, in the span that is current here.

        Who is cancelled leaves it running.

        Raises IllegalStateError after `close`.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._closed:
                raise IllegalStateError(f"the threads called {self._name} have been told to end")
            self._waiting += 1
            if self._waiting > self._idle and len(self._threads) < self._count_max:
                name = f"{self._name} {len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            self._functions.put(partial(call_for, loop, result, partial(in_this_span(function), *args, **kwargs)))
        return await result

    def close(self, timeout_s: float = 0.0) -> None:
        """Let each thread end after what was given to `run` before, and wait for that until `timeout_s` has passed."""
        clock = RealClock()
        deadline = clock.monotonic() + timeout_s
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._functions.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - clock.monotonic()))
        hanging = [thread.name for thread in self._threads if thread.is_alive()]
        if hanging and timeout_s:
            logger.warning("the function that runs in %s does not return; it is left behind", ", ".join(hanging))

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            function = self._functions.get()
            with self._lock:
                self._idle -= 1
                self._waiting -= function is not None
            if function is None:
                return
            function()
