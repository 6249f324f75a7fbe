"""What the two ways to consume have in common (MISSION C9, O1, O2, L10)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from mqclient.consumer.process_queue import ProcessQueue
from mqclient.lifecycle import wait_event
from mqclient.message import MessageExt, MessageQueue
from osenv import Clock

logger = logging.getLogger("mqclient.consume_service")

BY_RECONSUME_TIMES, TO_DEAD_LETTERS = 0, -1  # as delay levels
Finish = Callable[[ProcessQueue, Sequence[MessageExt]], None]  # takes messages out of their queue for good


class GiveBack(Protocol):
    """What becomes of a message that was not consumed: back to its broker, or out into the log (broadcasting)."""

    async def __call__(
        self,
        process_queue: ProcessQueue,
        message: MessageExt,
        *,
        failure: object,
        delay_level: int = BY_RECONSUME_TIMES,
    ) -> None:
        """It comes again after `delay_level`, or not at all; `failure` is what the listener answered or raised.

        Raises MQClientError when it could not be given back.
        """


class ConsumeService(Protocol):
    """Takes messages from process queues to the listener, and finished ones out of them."""

    @property
    def running(self) -> int:
        """How many listeners run, until what they had is finished or given back."""

    def start(self) -> None:
        """Begin to consume what is submitted."""

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """These have been put into the process queue; flow control is what bounds their number."""

    def set_concurrency(self, count: int) -> None:
        """Let at most so many listeners run at the same time from now on."""

    async def finish(self, queue: MessageQueue) -> None:
        """Return when no listener runs for this queue that would have to end before somebody else consumes it."""

    async def close(self, timeout_s: float) -> bool:
        """Let the listeners that run finish within `timeout_s`, and say whether all have.

        What has not begun stays unfinished.
        """


class Running:
    """How many listeners run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self.count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until none runs, for at most `timeout_s`, and say whether that is so."""
        idle = await wait_event(self._clock, self._idle, timeout_s)
        if not idle:
            logger.warning("%d listeners did not finish in time; their messages will come again", self.count)
        return idle


class Slots:
    """At most `count` at a time, first come, first served; the number can be changed at any time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def resize(self, count: int) -> None:
        """More may come in at once; those who are in stay, also when they are too many now."""
        self._count = count
        self._admit()

    def _leave(self) -> None:
        self._used -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._used < self._count:
            turn = self._waiting.popleft()
            if not turn.done():
                self._used += 1
                turn.set_result(None)


class ConcurrencyControl:
    """How many listeners may run, adjusted to what waits (MISSION L10): one more or one less at a time.

    More than `threshold` messages waiting: one more; fewer than 80 % of it: one less, as in RocketMQ.
    """

    SHRINK_SHARE = 0.8

    def __init__(self, least: int, most: int, threshold: int) -> None:
        self._least, self._most, self._threshold = least, most, threshold
        self.count = least

    def adjusted(self, waiting: int) -> int:
        """The new number, with so many messages waiting."""
        if waiting >= self._threshold:
            self.count = min(self.count + 1, self._most)
        elif waiting < self.SHRINK_SHARE * self._threshold:
            self.count = max(self.count - 1, self._least)
        return self.count
