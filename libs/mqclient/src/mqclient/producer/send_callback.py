"""Sends that nobody awaits: the result goes to a callback (MISSION P2, P6).

Invariants: every send that was accepted calls exactly one method of its callback, once, also when the producer is shut
down; what is under way, callbacks included, is bounded.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from mqclient.errors import ConnectionLostError
from mqclient.lifecycle import BackgroundTasks, WorkerThreads
from mqclient.message import SendResult
from mqclient.producer.in_flight import InFlightLimit
from osenv import Clock

logger = logging.getLogger("mqclient.send_callback")


class SendCallback(Protocol):
    """Plain methods run in a thread of their own, so that a slow one delays neither the event loop nor other sends;
    coroutine methods run as tasks on the event loop. What they raise is logged.
    """

    def on_success(self, result: SendResult) -> Any:
        """The message is stored."""

    def on_exception(self, error: Exception) -> Any:
        """It is not, or nobody knows: the error is what `Producer.send` would have raised."""


class CallbackSends:
    """The sends of one producer whose results go to callbacks."""

    def __init__(self, limit: InFlightLimit, threads_max: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._tasks = BackgroundTasks(clock)
        self._threads = WorkerThreads("mqclient-callback", threads_max)

    def start(self, send: Callable[[], Awaitable[SendResult]], size: int, callback: SendCallback) -> None:
        """Send, and call back. Raises TooManyRequestsError; then the callback is not called."""
        self._limit.take(size)
        task = self._tasks.start(self._send_and_call(send, callback), "mqclient async send", in_span=True)
        task.add_done_callback(lambda _: self._limit.give_back(size))

    @property
    def count(self) -> int:
        """How many have not ended, their callbacks included."""
        return self._tasks.count

    async def close(self, deadline: float) -> None:
        """Wait for all callbacks until `deadline` (monotonic); those of sends that go on then get an error."""
        left = await self._tasks.drain(deadline - self._clock.monotonic())
        if left:
            logger.warning("%d asynchronous sends, or their callbacks, did not end in time", left)
        await self._tasks.close()
        self._threads.close()

    async def _send_and_call(self, send: Callable[[], Awaitable[SendResult]], callback: SendCallback) -> None:
        error: Exception
        try:
            result = await send()
        except Exception as raised:
            error = raised
        except asyncio.CancelledError:  # by `close`, which still waits for the callback
            error = ConnectionLostError("the producer was shut down before the answer came")
        else:
            await self._call(callback.on_success, result)
            return
        await self._call(callback.on_exception, error)

    async def _call(self, method: Callable[[Any], Any], argument: SendResult | Exception) -> None:
        try:
            if inspect.iscoroutinefunction(method):
                await method(argument)
                return
            returned = await self._threads.run(method, argument)
            if inspect.isawaitable(returned):
                await returned
        except Exception:
            logger.exception("a send callback failed with %r", argument)
