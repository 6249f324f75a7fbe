"""Long polls: a pull that finds nothing is held until there is something (MISSION C7).

Invariants: every poll is answered exactly once; a poll is held for 15 s at the most, and woken in the same step in
which a record of its queue becomes readable. A held poll is a small object and one timer, not a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.processor.pulling import Pulling
from mqproto.codes import PullStatus, ResponseCode
from osenv import Clock, Timer

log = logging.getLogger(__name__)

SUSPEND_MS_MAX = 15_000

QueueKey = tuple[str, int]
Reply = Callable[[PullResult], None]


@dataclass(eq=False, slots=True)
class Poll:
    """One poll on its way to an answer."""

    query: PullQuery
    reply: Reply
    suspend_ms: int
    until: float | None = None  # by the monotonic clock, once it was held
    timer: Timer | None = None
    reading: asyncio.Task[None] | None = None


@dataclass
class LongPolling:
    """All polls of the broker that wait."""

    pulling: Pulling
    clock: Clock
    _held: dict[QueueKey, set[Poll]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pulling.store.on_readable(self._wake)

    @property
    def held(self) -> int:
        """How many polls wait."""
        return sum(map(len, self._held.values()))

    def poll(self, query: PullQuery, suspend_ms: int, reply: Reply) -> Poll:
        """Answer through `reply`: now, or when there is something, or after `suspend_ms` with NO_NEW_MSG."""
        poll = Poll(query, reply, min(suspend_ms, SUSPEND_MS_MAX))
        self._serve(poll)
        return poll

    def cancel(self, poll: Poll) -> None:
        """The poll's client has gone, or does not want it any more: nobody is answered."""
        if poll.reading is not None:
            poll.reading.cancel()
        self._forget(poll)

    def expire(self, poll: Poll) -> None:
        """Answer with what there is now, without waiting any longer; no effect on a poll that is not held."""
        if poll.timer is not None:
            self._forget(poll)
            poll.suspend_ms = 0
            self._serve(poll)

    def answer_all(self, chosen: Callable[[PullQuery], bool]) -> None:
        """Answer the held polls that are `chosen` with what there is now: something about them has changed."""
        for poll in [poll for polls in self._held.values() for poll in polls if chosen(poll.query)]:
            self.expire(poll)

    def _serve(self, poll: Poll) -> None:
        result = self.pulling.pull_hot(poll.query)
        if result is None:
            poll.reading = asyncio.create_task(self._read(poll), name="cold read")
        else:
            self._settle(poll, result)

    async def _read(self, poll: Poll) -> None:
        try:
            result = await self.pulling.pull(poll.query)
        except (OSError, ValueError) as error:
            log.exception("reading queue %d of %s failed", poll.query.queue_id, poll.query.topic)
            result = PullResult(ResponseCode.SYSTEM_ERROR, f"the disk could not be read: {error}")
        poll.reading = None
        self._settle(poll, result)

    def _settle(self, poll: Poll, result: PullResult) -> None:
        if result.status is not PullStatus.NO_NEW_MSG or poll.suspend_ms <= 0:
            poll.reply(result)
            return
        key = (poll.query.topic, poll.query.queue_id)
        self._held.setdefault(key, set()).add(poll)
        if poll.until is None:
            poll.until = self.clock.monotonic() + poll.suspend_ms / 1000
        poll.timer = self.clock.call_later(max(0.0, poll.until - self.clock.monotonic()), lambda: self.expire(poll))

    def _wake(self, topic: str, queue_id: int) -> None:
        for poll in self._held.pop((topic, queue_id), ()):
            self._disarm(poll)
            self._serve(poll)

    def _forget(self, poll: Poll) -> None:
        self._disarm(poll)
        key = (poll.query.topic, poll.query.queue_id)
        polls = self._held.get(key)
        if polls is not None:
            polls.discard(poll)
            if not polls:
                del self._held[key]

    @staticmethod
    def _disarm(poll: Poll) -> None:
        if poll.timer is not None:
            poll.timer.cancel()
            poll.timer = None
