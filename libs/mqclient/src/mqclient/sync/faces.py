"""What all synchronous faces share: the life of an asyncio object on one shared loop, and its methods without `await`.

A local transaction runs where the application has called `send_message_in_transaction`, as in RocketMQ: with the
thread's own database session, and where Ctrl-C arrives.

Invariants: a face does nothing by itself, the asyncio object does the work, and all of asyncio happens in one thread;
that runs while a face is started, and ends with the last one: by its shutdown, when a `with` is left, or at the
interpreter's exit. A call that was submitted before the end of the thread is answered, and one that comes later is
rejected; an interrupted caller stops waiting, and what it has called goes on. A function that is handed over runs in
the caller's thread, or is rejected because the caller has given up.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial, update_wrapper, wraps
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, Generic, NamedTuple, NoReturn, ParamSpec, Protocol, Self, TypeVar

from mqclient.errors import IllegalStateError
from mqclient.lifecycle import ServiceState, call_for
from telemetry.context import in_this_span

logger = logging.getLogger("mqclient.sync")

T = TypeVar("T")

Call = Callable[[], Coroutine[Any, Any, T]]

INTERRUPT_POLL_S = 0.5  # how long Windows may take to notice Ctrl-C: it interrupts no wait that has no end

P = ParamSpec("P")

SHUTDOWN_TIMEOUT_S = 10.0
EXIT_TIMEOUT_S = 3.0  # for each face that is still started when the interpreter ends
FaceT = TypeVar("FaceT", bound="SyncFacade[Any]")


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
        """The thread; its user gives it back with `release`."""
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


class CallerThread:
    """Made by the caller, which then waits with `result_of`."""

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
            self._reject_the_rest()
        return result_of(future)

    def _reject_the_rest(self) -> None:
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


class AsyncLife(Protocol):
    """What the asyncio classes have in common."""

    async def start(self) -> None: ...

    async def shutdown(self, *, timeout_s: float) -> None: ...

    @property
    def state(self) -> ServiceState: ...


LifeT = TypeVar("LifeT", bound=AsyncLife)
LifeT_co = TypeVar("LifeT_co", bound=AsyncLife, covariant=True)

_shared = SharedLoopThread()
_started: set[SyncFacade[Any]] = set()


class SyncFacade(Generic[LifeT_co]):
    """One asyncio object, for any number of threads.

    Every method waits for its result in the calling thread, and raises what the asyncio method raises; in a thread that
    runs an event loop it raises IllegalStateError. KeyboardInterrupt ends the wait: what was begun goes on.
    """

    def __init__(self, inner: LifeT_co) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None

    @property
    def state(self) -> ServiceState:
        """Where the asyncio object is in its life."""
        return self._inner.state

    def start(self) -> None:
        """Start the asyncio object, and for the first face the thread. Raises what the asyncio object raises.

        A start that is interrupted is taken back.
        """
        self._forbid_event_loop("start")
        thread = _shared.acquire()
        try:
            starting = thread.submit(self._inner.start)
            try:
                result_of(starting)
            except KeyboardInterrupt:
                starting.cancel()
                raise
        except BaseException:
            _shared.release()
            raise
        self._thread = thread
        _started.add(self)

    def shutdown(self, *, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Shut the asyncio object down, within `timeout_s`; the last face ends the thread. Raises IllegalStateError."""
        self._forbid_event_loop("shutdown")
        with self._lock:
            thread, self._thread = self._required_thread(), None
        try:
            result_of(thread.submit(partial(self._inner.shutdown, timeout_s=timeout_s)))
        finally:
            _started.discard(self)
            self._close_threads()
            _shared.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self.shutdown()

    # ------------------------------------------------------------------------------------------------ for the faces

    def _run(self, what: str, call: Call[T], wait: Callable[[Future[T]], T] = result_of) -> T:
        """The result of a call on the shared loop. `what` is the method's name, for the error."""
        self._forbid_event_loop(what)
        return wait(self._required_thread().submit(call))

    def _close_threads(self) -> None:
        """End the threads that this face has for the application's functions."""

    def _forbid_event_loop(self, what: str) -> None:
        forbid_event_loop(f"{type(self).__name__}.{what}")

    def _required_thread(self) -> LoopThread:
        thread = self._thread
        if thread is None:
            raise IllegalStateError(f"this {type(self).__name__} is not running: it was not started, or was shut down")
        return thread


def blocking(
    method: Callable[Concatenate[LifeT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncFacade[LifeT], P], T]:
    """The coroutine method of an asyncio class as a method of its face: the same arguments, result and errors."""

    @wraps(method)
    def call(face: SyncFacade[LifeT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return face._run(method.__name__, partial(method, face._inner, *args, **kwargs))

    return call


def made_like(
    make: Callable[P, LifeT],
) -> Callable[[Callable[[FaceT, LifeT], None]], Callable[Concatenate[FaceT, P], None]]:
    """The constructor of a face with the arguments of its asyncio class; what it decorates gets the asyncio object."""

    def decorate(init: Callable[[FaceT, LifeT], None]) -> Callable[Concatenate[FaceT, P], None]:
        def construct(face: FaceT, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(face, make(*args, **kwargs))

        return update_wrapper(construct, make.__init__)

    return decorate


def at_once(method: Callable[Concatenate[LifeT, P], T]) -> Callable[Concatenate[SyncFacade[LifeT], P], T]:
    """The same for a method that is no coroutine: it is called on the shared loop, where its object lives."""

    @wraps(method)
    def call(face: SyncFacade[LifeT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def call_method() -> T:
            return method(face._inner, *args, **kwargs)

        return face._run(method.__name__, call_method)

    return call


def iterating(
    method: Callable[Concatenate[LifeT, P], AsyncIterator[T]],
) -> Callable[Concatenate[SyncFacade[LifeT], P], Iterator[T]]:
    """The same for a method that gives an async iterator: each item is waited for when it is asked for."""

    @wraps(method)
    def call(face: SyncFacade[LifeT], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(face._inner, *args, **kwargs)

        async def following() -> tuple[T] | None:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return None

        while found := face._run(method.__name__, following):
            yield found[0]

    return call


def _shut_down_all() -> None:
    """At the interpreter's exit: faces that are still running must not be cut off in the middle of a send."""
    for face in list(_started):
        try:
            face.shutdown(timeout_s=EXIT_TIMEOUT_S)
        except Exception:
            logger.exception("%r could not be shut down at the interpreter's exit", face)


atexit.register(_shut_down_all)
if hasattr(os, "register_at_fork"):  # a forked process has its parent's faces, and not their thread
    os.register_at_fork(after_in_child=_started.clear)
