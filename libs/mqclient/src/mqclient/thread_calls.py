"""Between an event loop and other threads: a function is called there, and awaited here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_for(loop: asyncio.AbstractEventLoop, result: asyncio.Future[T], function: Callable[[], T]) -> None:
    """Call `function` in this thread, and give what it returns or raises to whoever awaits `result` on `loop`.

    Nobody may wait any more: then it is dropped. What is no Exception is raised here, and there a RuntimeError.
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
        return  # the loop has been closed, so nobody waits any more
