"""One event loop in one thread, for all synchronous faces of this process.

Invariants: the thread runs while a face is started, and no longer; all of asyncio happens in it; a call that was
submitted before the end of the thread is answered, and one that comes later is refused; a caller who is interrupted
stops waiting, and what it has called goes on.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from mqclient.errors import IllegalStateError

T = TypeVar("T")

Call = Callable[[], Coroutine[Any, Any, T]]

INTERRUPT_POLL_S = 0.5  # how long Windows may take to notice Ctrl-C: it interrupts no wait that has no end


class LoopThread:
    """Runs from its creation until `stop`. A daemon: the interpreter does not wait for it, `faces.py` ends it."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._stopped = False
        self._running = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._asked_to_stop: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="mqclient sync", daemon=True)
        self._thread.start()
        self._running.wait()

    def submit(self, call: Call[T]) -> Future[T]:
        """Begin the call. Raises IllegalStateError after `stop`, and in a process that was forked off since."""
        if os.getpid() != self._process_id:
            raise IllegalStateError("this was started before the process was forked; make a new one in the new process")
        with self._lock:
            if self._stopped:
                raise IllegalStateError("the event loop of the synchronous faces has ended: every face was shut down")
            return asyncio.run_coroutine_threadsafe(call(), self._loop)

    def stop(self) -> None:
        """End the loop, cancelling what still runs on it, and return when the thread has ended, and gRPC's as well."""
        with self._lock:
            self._stopped = True
            self._loop.call_soon_threadsafe(self._asked_to_stop.set)
        self._thread.join()
        gc.collect()  # gRPC's own thread ends with the last of its objects, and those are parts of cycles

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked_to_stop = asyncio.Event()
        self._running.set()
        await self._asked_to_stop.wait()


def result_of(future: Future[T]) -> T:
    """Wait for the result. Raises what the call raised, and IllegalStateError when its loop ended before it did.

    KeyboardInterrupt ends the wait, and not the call.
    """
    while True:
        try:
            return future.result(INTERRUPT_POLL_S)
        except CancelledError:
            raise IllegalStateError("the synchronous faces were shut down before this call had ended") from None
        except TimeoutError:
            if future.done():  # meanwhile, or it is the call's own
                return future.result()


def forbid_event_loop(what: str) -> None:
    """Raise IllegalStateError in a thread that runs an event loop: waiting would stop it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise IllegalStateError(f"{what} would block the event loop that runs in this thread; await mqclient's own classes")


class SharedLoopThread:
    """The one LoopThread, started by the first user and stopped by the last."""

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):  # a forked process gets this object, and not the thread
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._users = 0

    def acquire(self) -> LoopThread:
        """The thread; who gets it gives it back with `release`."""
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread()
            self._users += 1
            return self._thread

    def release(self) -> None:
        """Give it back. The last one waits for its end."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._thread is not None:
                thread, self._thread = self._thread, None
                thread.stop()
