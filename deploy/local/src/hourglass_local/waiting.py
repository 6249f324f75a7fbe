"""Waiting for conditions with a deadline: the one place where anything polls."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, TypeVar, overload

T = TypeVar("T")

POLL_INTERVAL_S = 0.02


class NotInTimeError(TimeoutError):
    """The condition did not come true; the message says which one and what was seen last."""


@overload
async def eventually(
    check: Callable[[], Awaitable[T]], timeout_s: float, what: str = ..., *, interval_s: float = ...
) -> T: ...


@overload
async def eventually(check: Callable[[], T], timeout_s: float, what: str = ..., *, interval_s: float = ...) -> T: ...


async def eventually(
    check: Callable[[], Any], timeout_s: float, what: str = "the condition", *, interval_s: float = POLL_INTERVAL_S
) -> Any:
    """The first truthy answer of `check`, asked again and again for `timeout_s` at most. Raises NotInTimeError."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = check()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() >= deadline:
            raise NotInTimeError(f"{what} did not come true within {timeout_s:g} s; last seen: {value!r}")
        await asyncio.sleep(interval_s)


async def alongside(work: Coroutine[Any, Any, T], *guards: Coroutine[Any, Any, NoReturn]) -> T:
    """What `work` returns; a guard that raises first ends it, and its error is raised."""
    working = asyncio.create_task(work)
    tasks: set[asyncio.Task[Any]] = {working, *(asyncio.create_task(guard) for guard in guards)}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {working}:
            task.result()
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
