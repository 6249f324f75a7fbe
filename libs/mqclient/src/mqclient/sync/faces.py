"""What all synchronous faces share: the life of an asyncio object on the shared loop, and its methods without `await`.

Invariants: a face does nothing by itself, the asyncio object does the work; the shared thread runs while a face is
started, and ends with the last one: by its shutdown, when a `with` is left, or at the interpreter's exit.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial, update_wrapper, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from mqclient.errors import IllegalStateError
from mqclient.lifecycle import ServiceState
from mqclient.sync.loop_thread import Call, LoopThread, SharedLoopThread, forbid_event_loop, result_of

logger = logging.getLogger("mqclient.sync")

SHUTDOWN_TIMEOUT_S = 10.0
EXIT_TIMEOUT_S = 3.0  # for each face that is still started when the interpreter ends


class AsyncLife(Protocol):
    """What the asyncio classes have in common."""

    async def start(self) -> None: ...

    async def shutdown(self, *, timeout_s: float) -> None: ...

    @property
    def state(self) -> ServiceState: ...


LifeT = TypeVar("LifeT", bound=AsyncLife)
LifeT_co = TypeVar("LifeT_co", bound=AsyncLife, covariant=True)
FaceT = TypeVar("FaceT", bound="Face[Any]")
P = ParamSpec("P")
T = TypeVar("T")

_shared = SharedLoopThread()
_started: set[Face[Any]] = set()


class Face(Generic[LifeT_co]):
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
) -> Callable[Concatenate[Face[LifeT], P], T]:
    """The coroutine method of an asyncio class as a method of its face: the same arguments, result and errors."""

    @wraps(method)
    def call(face: Face[LifeT], /, *args: P.args, **kwargs: P.kwargs) -> T:
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


def at_once(method: Callable[Concatenate[LifeT, P], T]) -> Callable[Concatenate[Face[LifeT], P], T]:
    """The same for a method that is no coroutine: it is called on the shared loop, where its object lives."""

    @wraps(method)
    def call(face: Face[LifeT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def call_method() -> T:
            return method(face._inner, *args, **kwargs)

        return face._run(method.__name__, call_method)

    return call


def iterating(
    method: Callable[Concatenate[LifeT, P], AsyncIterator[T]],
) -> Callable[Concatenate[Face[LifeT], P], Iterator[T]]:
    """The same for a method that gives an async iterator: each item is waited for when it is asked for."""

    @wraps(method)
    def call(face: Face[LifeT], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
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
    """At the interpreter's exit: faces that nobody has shut down must not be cut off in the middle of a send."""
    for face in list(_started):
        try:
            face.shutdown(timeout_s=EXIT_TIMEOUT_S)
        except Exception:
            logger.exception("%r could not be shut down at the interpreter's exit", face)


atexit.register(_shut_down_all)
if hasattr(os, "register_at_fork"):  # a forked process has its parent's faces, and not their thread
    os.register_at_fork(after_in_child=_started.clear)
