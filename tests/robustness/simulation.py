"""How a simulation is run: on an event loop that waits for nothing, and with few looks for garbage.

A history is some thousands of callbacks, and something is always ready to run: what asyncio does between two rounds of
them (ask the operating system for sockets, and the real clock for timers) finds nothing here.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GARBAGE_MAX = 100_000  # objects that are made before the garbage collector runs; 700 in Python


class SimLoop(asyncio.SelectorEventLoop):
    """Like its base, in the same order; while something is ready to run, sockets and real timers are not polled."""

    _ready: Any
    get_debug = staticmethod(bool)  # it is never debugged; this is asked for every task and future

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            super()._run_once()  # type: ignore[misc]
            return
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                message = f"Exception in callback {handle._callback!r}"
                self.call_exception_handler({"message": message, "exception": error, "handle": handle})


class _Handle(asyncio.Handle):
    """Like its base, for a loop that is never debugged."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: SimLoop, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled = False
        self._repr = self._source_traceback = None


def run_simulation(work: Coroutine[Any, Any, T]) -> T:
    """What the work returns or raises, as `asyncio.run`, on a loop of its own."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(work)


@contextmanager
def few_collections() -> Iterator[None]:
    """What there is already is not garbage, and of what comes little is, for it ends with its history."""
    before, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0  # as by the suite's conftest.py
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_MAX, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not is_frozen:
            gc.unfreeze()
