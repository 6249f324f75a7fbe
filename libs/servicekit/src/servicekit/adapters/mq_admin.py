"""An operator's questions to the queue. Each connects anew: they come seldom, and then want the present answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mqclient import Admin
from mqclient.errors import MQClientError
from osenv import Clock
from osenv.clock import timeout
from servicekit.errors import QueueUnreachableError

ANSWER_MAX_S = 5.0


@asynccontextmanager
async def asking_queue(url: str, clock: Clock) -> AsyncIterator[Admin]:
    """An admin for ANSWER_MAX_S at most. Raises QueueUnreachableError."""
    try:
        async with timeout(clock, ANSWER_MAX_S), Admin(url) as admin:
            yield admin
    except MQClientError as error:
        raise QueueUnreachableError(f"the queue does not answer: {error}") from error
    except TimeoutError as error:
        raise QueueUnreachableError(f"no answer from the queue in {ANSWER_MAX_S:g} s") from error
