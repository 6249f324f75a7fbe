"""Work that must not stop half way because its task was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when the caller is cancelled meanwhile, it hears of that only after the work has ended.

    A thread that syncs or renames goes on whatever happens to the task that waits for it: whoever comes next must not
    begin before it has ended, nor miss its error.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while True:
        try:
            result = await asyncio.shield(task)
            break
        except asyncio.CancelledError:
            if task.done():
                raise
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return result
