"""A call that needs its caller's own thread while the caller waits for it (MISSION T4).

A local transaction runs where the application has called `send_message_in_transaction`, as in RocketMQ: with the
thread's own database session, and where Ctrl-C arrives.

Invariant: a function that is handed over runs in the caller's thread, or is refused because the caller has given up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from mqclient.errors import IllegalStateError
from mqclient.lifecycle import call_for
from mqclient.sync.loop_thread import INTERRUPT_POLL_S, result_of
from telemetry.context import in_this_span

P = ParamSpec("P")
T = TypeVar("T")


class CallerThread:
    """Made by the caller, who then waits with `result_of`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits = True
        self._functions: SimpleQueue[_HandedOver | None] = SimpleQueue()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """From the event loop: what `function` returns in the caller's thread. Raises IllegalStateError."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if not self._waits:
                _given_up()
            answer = partial(call_for, loop, result)
            self._functions.put(_HandedOver(answer, partial(in_this_span(function), *args, **kwargs)))
        return await result

    def result_of(self, future: Future[T]) -> T:
        """Wait for the result, and run what is handed over meanwhile. Raises what the call raises."""
        future.add_done_callback(lambda _: self._functions.put(None))  # only wakes this thread
        try:
            while not future.done():
                try:
                    handed_over = self._functions.get(timeout=INTERRUPT_POLL_S)
                except Empty:
                    continue
                if handed_over is not None:
                    handed_over.answer(handed_over.function)
        finally:
            self._refuse_the_rest()
        return result_of(future)

    def _refuse_the_rest(self) -> None:
        with self._lock:
            self._waits = False
        while not self._functions.empty():
            handed_over = self._functions.get()
            if handed_over is not None:
                handed_over.answer(_given_up)


class _HandedOver(NamedTuple):
    """A function, and how its result reaches the event loop."""

    answer: Callable[[Callable[[], Any]], None]
    function: Callable[[], Any]


def _given_up() -> NoReturn:
    raise IllegalStateError("the caller was interrupted, and runs no local transaction any more")
