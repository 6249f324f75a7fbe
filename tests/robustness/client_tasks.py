"""Which simulated process a task belongs to, so that one can die: all of its tasks at once, without a word.

Invariant: a task belongs to the client in whose context it was created, and so do the tasks that it creates.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar, copy_context
from typing import Any

CLIENT: ContextVar[str] = ContextVar("client", default="")


class ClientTasks:
    """The tasks of every client of one event loop, from `install` to `uninstall`."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[asyncio.Task[Any], None]] = {}  # in the order of their beginning

    def install(self) -> None:
        asyncio.get_running_loop().set_task_factory(self._make)

    def uninstall(self) -> None:
        asyncio.get_running_loop().set_task_factory(None)

    def kill(self, client: str) -> None:
        """As by SIGKILL: nothing of it runs any more."""
        for task in list(self._tasks.get(client, ())):
            task.cancel()

    def _make(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        context: Context | None = options.get("context")
        client = context.get(CLIENT, "") if context is not None else CLIENT.get()
        if client:
            mine = self._tasks.setdefault(client, {})
            mine[task] = None
            task.add_done_callback(mine.pop)
        return task


def context_of(client: str) -> Context:
    """Where whatever is created belongs to `client`; to no client for ""."""
    context = copy_context()
    context.run(CLIENT.set, client)
    return context
