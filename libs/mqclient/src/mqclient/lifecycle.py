"""The lifecycle of a client's parts: their states, tasks and threads.

Invariants of states: a state only changes along the table; an event that the table does not have raises and changes
nothing. A start first sets START_FAILED, so that a start that raises half-way leaves the truth behind.

Invariants of tasks: after `close` no task of an owner is left, unless it ignores that it is cancelled, which is logged;
an unexpected exception is always logged, with its trace, and never ends a periodic task.

Invariants of threads: at most `count_max` functions run at once; no thread is started while one is idle; a thread ends
when it has done its work after `close`, and holds up no shutdown: a function that hangs is left behind, and reported.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from enum import Enum
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from mqclient.errors import IllegalStateError, NoRouteError
from osenv import Clock, RealClock
from osenv.clock import timeout
from telemetry.context import in_this_span, outside_spans

logger = logging.getLogger("mqclient.lifecycle")

CANCEL_PATIENCE_S = 1.0  # for code of the application that does something else than end when it is cancelled

T = TypeVar("T")

KeyT = TypeVar("KeyT", bound=Hashable)

P = ParamSpec("P")


class ServiceState(Enum):
    """RocketMQ's names."""

    CREATE_JUST = "CREATE_JUST"
    START_FAILED = "START_FAILED"
    RUNNING = "RUNNING"
    SHUTDOWN = "SHUTDOWN"


class LifecycleEvent(Enum):
    """The events of a service's life."""

    START = "start"
    STARTED = "finish its start"
    SHUTDOWN = "shut down"


TRANSITIONS: dict[tuple[ServiceState, LifecycleEvent], ServiceState] = {
    (ServiceState.CREATE_JUST, LifecycleEvent.START): ServiceState.START_FAILED,
    (ServiceState.START_FAILED, LifecycleEvent.STARTED): ServiceState.RUNNING,
    (ServiceState.RUNNING, LifecycleEvent.SHUTDOWN): ServiceState.SHUTDOWN,
}


class Lifecycle:
    """The state of the service called `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.state = ServiceState.CREATE_JUST

    @property
    def running(self) -> bool:
        return self.state is ServiceState.RUNNING

    def move(self, event: LifecycleEvent) -> None:
        """Follow the table. Raises IllegalStateError."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise IllegalStateError(f"{self._name} cannot {event.value}: it is in state {self.state.value}")
        self.state = following

    def require_running(self) -> None:
        """Raise IllegalStateError unless the service runs."""
        if self.state is not ServiceState.RUNNING:
            raise IllegalStateError(f"{self._name} is not running: it is in state {self.state.value}")


class Service(ABC):
    """What is started and shut down, with `async with` for both: on the way out only what still runs is shut down."""

    _lifecycle: Lifecycle

    @property
    def state(self) -> ServiceState:
        """Where it is in its life: CREATE_JUST, START_FAILED (also while it starts), RUNNING or SHUTDOWN."""
        return self._lifecycle.state

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def shutdown(self, *, timeout_s: float = 10.0) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lifecycle.running:
            await self.shutdown()


class BackgroundTasks:
    """Starts tasks, keeps them alive, and cancels what still runs when it is closed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they are cancelled

    def start(
        self, coroutine: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False, in_span: bool = False
    ) -> asyncio.Task[Any]:
        """Run `coroutine` as a task called `name`; with `awaited`, a caller awaits it and gets its errors.

        It leaves the current span, which most tasks outlive by far, unless it is a part of that and is `in_span`.
        """
        context = None if in_span else outside_spans()
        task = asyncio.get_running_loop().create_task(coroutine, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._answered if awaited else self._finished)
        return task

    def start_periodic(
        self, action: Callable[[], Awaitable[object]], *, first_delay_s: float, interval_s: float, name: str
    ) -> asyncio.Task[Any]:
        """Run `action` after `first_delay_s` and then with `interval_s` between two runs."""
        return self.start(self._repeat(action, first_delay_s, interval_s, name), name)

    @property
    def count(self) -> int:
        """How many run."""
        return len(self._tasks)

    async def drain(self, seconds: float) -> int:
        """Wait until nothing runs any more, for at most `seconds`; return how many still do."""
        if seconds <= 0:
            return len(self._tasks)
        try:
            async with timeout(self._clock, seconds):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            return len(self._tasks)
        return 0

    async def close(self) -> None:
        """Cancel everything and wait until it has ended; what has not after CANCEL_PATIENCE_S is logged and left."""
        stubborn = await self._cancel_all()
        if stubborn:
            names = ", ".join(sorted(task.get_name() for task in stubborn))
            logger.error("%d tasks go on although they were cancelled: %s", len(stubborn), names)

    async def _cancel_all(self) -> list[asyncio.Task[Any]]:
        """Cancel all; the tasks that are still running afterwards."""
        myself = asyncio.current_task()
        if not self._all_but(myself):
            return []
        try:
            async with timeout(self._clock, CANCEL_PATIENCE_S):
                while others := self._all_but(myself):
                    for task in others:
                        task.cancel()
                    await asyncio.wait(others)
        except TimeoutError:
            return self._all_but(myself)
        return []

    def _all_but(self, one: asyncio.Task[Any] | None) -> list[asyncio.Task[Any]]:
        return [task for task in self._tasks if task is not one]

    async def _repeat(
        self, action: Callable[[], Awaitable[object]], first_delay_s: float, interval_s: float, name: str
    ) -> None:
        await self._clock.sleep(first_delay_s)
        while True:
            try:
                await action()
            except Exception:
                logger.exception("%s failed; it runs again in %.3f s", name, interval_s)
            await self._clock.sleep(interval_s)

    def _answered(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # retrieved, because all its callers may have been cancelled meanwhile

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the background task %s ended with an error", task.get_name(), exc_info=error)


async def wait_event(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Wait until `event` is set, for at most `seconds`, and say whether it is. Clears nothing."""
    if event.is_set() or seconds <= 0:
        return event.is_set()
    try:
        async with timeout(clock, seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


async def finish_despite_cancellation(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await `coroutine` to its end even when the caller is cancelled meanwhile; the cancellation is raised afterwards.

    For endings that are short by themselves: half of them would leave something behind.
    """
    task = asyncio.get_running_loop().create_task(coroutine, name="mqclient ending")
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) is not None:
        logger.error("an ending failed, and its caller was cancelled meanwhile", exc_info=failure)
    raise cancellation


class SharedCalls(Generic[KeyT, T]):
    """The calls that run now, by key. They end with their owner's `tasks`."""

    def __init__(self, tasks: BackgroundTasks) -> None:
        self._tasks = tasks
        self._running: dict[KeyT, asyncio.Task[T]] = {}

    def is_running(self, key: KeyT) -> bool:
        """Whether the next `run` joins a call that began earlier."""
        return key in self._running

    async def run(self, key: KeyT, call: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
        """The result of the call. Raises what it raises, and NoRouteError when the client is shut down meanwhile."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = self._tasks.start(call(), name, awaited=True)
            task.add_done_callback(lambda _: self._running.pop(key, None))
        try:
            # Shielded: the result is for all callers, also when the first one is cancelled.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise NoRouteError(f"{name}: the client was shut down before there was an answer") from None


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

        A cancelled caller leaves it running.

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


def call_for(loop: asyncio.AbstractEventLoop, result: asyncio.Future[T], function: Callable[[], T]) -> None:
    """Call `function` in this thread, and set the outcome of `result` on `loop`.

    The outcome is dropped when `result` was cancelled. What is no Exception is raised here, and there a RuntimeError.
    """
    try:
        value = function()
    except Exception as error:  # it is raised where the result is awaited
        _settle(loop, result, error)
    except BaseException as interruption:
        _settle(loop, result, RuntimeError(f"interrupted by {interruption!r}"))
        raise
    else:
        _settle(loop, result, None, value)


def _settle(loop: asyncio.AbstractEventLoop, result: asyncio.Future[T], error: Exception | None, *value: T) -> None:
    def settle() -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value[0])

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        return  # the loop has been closed, and its tasks with it
