"""The queues that a pull consumer reads in turns, and where it is in each (MISSION C5).

Invariants: a queue that is not paused has one pull at most, under way or waiting to be handed out, and it began at the
queue's position; a position moves when messages are handed out or when somebody seeks, and in no other way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from mqclient.consumer.pulling import PullResult
from mqclient.errors import IllegalStateError
from mqclient.lifecycle import BackgroundTasks
from mqclient.message import MessageExt, MessageQueue
from mqproto.codes import PullStatus
from osenv import Clock
from osenv.clock import timeout

logger = logging.getLogger("mqclient.assigned_queues")

Begin = Callable[[MessageQueue], Awaitable[int]]
Pull = Callable[[MessageQueue, int], Awaitable[PullResult]]


@dataclass(slots=True)
class _Queue:
    """`position` is None before it is known. `sought`: somebody has moved it since it was last committed."""

    position: int | None = None
    sought: bool = False
    paused: bool = False
    pull: asyncio.Task[PullResult] | None = None

    def drop_pull(self) -> None:
        """What was pulled, or is being pulled, is not wanted any more."""
        if self.pull is not None:
            self.pull.cancel()
            self.pull = None


class AssignedQueues:
    """`begin` tells where to begin with a queue for which nobody has sought; `assign` tells how to pull."""

    def __init__(self, clock: Clock, begin: Begin) -> None:
        self._clock = clock
        self._begin = begin
        self._pull: Pull
        self._tasks = BackgroundTasks(clock)
        self._queues: dict[MessageQueue, _Queue] = {}  # in the order of their turns
        self._changed = asyncio.Event()
        self._closed = False

    def assign(self, queues: Iterable[MessageQueue], pull: Pull) -> None:
        """Read these queues from now on, and no others; those that stay go on where they are."""
        wanted = dict.fromkeys(queues)
        for state in self._queues.values():
            state.drop_pull()
        self._queues = {queue: self._queues.get(queue) or _Queue() for queue in wanted}
        self._pull = pull
        self._changed.set()

    @property
    def queues(self) -> list[MessageQueue]:
        """What is assigned, sorted."""
        return sorted(self._queues)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset behind what was handed out; None before it is known. Raises IllegalStateError."""
        return self._state(queue).position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`. Raises IllegalStateError when the queue is not assigned."""
        state = self._state(queue)
        state.drop_pull()
        state.position, state.sought = offset, True
        self._changed.set()

    def pause(self, queue: MessageQueue) -> None:
        """Hand out nothing of this queue until `resume`. Raises IllegalStateError."""
        state = self._state(queue)
        state.drop_pull()
        state.paused = True

    def resume(self, queue: MessageQueue) -> None:
        """Hand out messages of this queue again. Raises IllegalStateError."""
        self._state(queue).paused = False
        self._changed.set()

    async def poll(self, timeout_s: float) -> list[MessageExt]:
        """The next messages of the next queue that has any; empty after `timeout_s` without one.

        Raises IllegalStateError, and what a pull has raised; the queue is pulled again by the next `poll`.
        """
        try:
            async with timeout(self._clock, timeout_s):
                while True:
                    self._require_queues()
                    self._changed.clear()
                    messages = self._take_next()
                    self._start_pulls()
                    if messages or timeout_s <= 0:
                        return messages
                    await self._changed.wait()
        except TimeoutError:
            return []

    def to_commit(self) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        """The positions that somebody has sought, and the others that are known."""
        known = {queue: state.position for queue, state in self._queues.items() if state.position is not None}
        sought = {queue: position for queue, position in known.items() if self._queues[queue].sought}
        return sought, {queue: position for queue, position in known.items() if queue not in sought}

    def committed(self, sought: Mapping[MessageQueue, int]) -> None:
        """The broker has taken over what was sought."""
        for queue in sought:
            if state := self._queues.get(queue):
                state.sought = False

    def follow(self, queue: MessageQueue, offset: int) -> None:
        """Somebody else has set the group's offset: go on there."""
        if queue in self._queues:
            logger.info("%s: the offset of the group was set to %d", queue, offset)
            self.seek(queue, offset)
            self._queues[queue].sought = False

    async def close(self) -> None:
        """Pull nothing more; whoever waits in `poll` gets IllegalStateError."""
        self._closed = True
        self._changed.set()
        await self._tasks.close()

    def _require_queues(self) -> None:
        if self._closed:
            raise IllegalStateError("the consumer has been shut down")
        if not self._queues:
            raise IllegalStateError("no queue is assigned; call assign first")

    def _start_pulls(self) -> None:
        for queue, state in self._queues.items():
            if state.pull is None and not state.paused:
                state.pull = self._tasks.start(self._read(queue, state), f"mqclient pull {queue}", awaited=True)
                state.pull.add_done_callback(lambda _: self._changed.set())

    async def _read(self, queue: MessageQueue, state: _Queue) -> PullResult:
        if state.position is None:
            state.position = await self._begin(queue)
        return await self._pull(queue, state.position)

    def _take_next(self) -> list[MessageExt]:
        """What the first queue in turn has found, or raises. Either ends its turn."""
        for queue, state in list(self._queues.items()):
            if state.pull is None or not state.pull.done():
                continue
            pull, state.pull = state.pull, None
            if pull.exception() is not None or pull.result().messages:
                self._queues[queue] = self._queues.pop(queue)
            result = pull.result()
            if result.status is PullStatus.OFFSET_ILLEGAL:
                following = result.next_begin_offset
                logger.warning("%s has no offset %s any more; it goes on at %d", queue, state.position, following)
            state.position = result.next_begin_offset
            if result.messages:
                return list(result.messages)
        return []

    def _state(self, queue: MessageQueue) -> _Queue:
        state = self._queues.get(queue)
        if state is None:
            raise IllegalStateError(f"{queue} is not assigned to this consumer; assigned are {self.queues}")
        return state
