"""Calls that many want at once and that run once: whoever comes while one of the same key runs waits for that one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from mqclient.background import BackgroundTasks
from mqclient.errors import NoRouteError

KeyT = TypeVar("KeyT", bound=Hashable)
T = TypeVar("T")


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
            # Shielded: the result is everybody's, also when the caller who asked first gives up.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise NoRouteError(f"{name}: the client was shut down before there was an answer") from None
