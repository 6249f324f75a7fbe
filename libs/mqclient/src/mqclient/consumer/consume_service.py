"""The messages of one assigned queue that have been pulled and are not finished, and what takes them to the listener.

Invariants: offsets in flight are below `pull_offset` and arrive in ascending order; the commit offset is the smallest
one in flight, or `pull_offset` when there is none, so that it never passes an unfinished message; what the group had
finished before this consumer began is not taken in again; `log_end` never shrinks, and is behind the retries of all
that was sent back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from mqclient.config import FlowControl
from mqclient.consumer.offsets import FinishedBefore, Progress, gaps_between
from mqclient.lifecycle import wait_event
from mqclient.message import MessageExt, MessageQueue
from osenv import Clock

logger = logging.getLogger("mqclient.consume_service")

NEVER = float("-inf")

SLICE_S = 10
SLICES = 6  # together a minute

BY_RECONSUME_TIMES, TO_DEAD_LETTERS = 0, -1  # as delay levels


class ProcessQueue:
    """State only: the pull loop fills it, the consume service empties it."""

    def __init__(self, queue: MessageQueue, begin: Progress, flow_control: FlowControl | None = None) -> None:
        self.queue = queue
        self.version = begin.version
        self.log_end = begin.log_end
        self.pull_offset = begin.offset
        self.max_offset = begin.offset  # the queue's end, as far as this consumer has heard
        self.dropped = False
        self.outdated = False  # its offset has been set since: what is finished here does not count any more
        self.locked_until = NEVER  # monotonic; of an orderly consumer
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self._flow_control = flow_control or FlowControl()
        self._finished_before = FinishedBefore(begin.finished)
        self._in_flight: dict[int, MessageExt] = {}  # in ascending order, because they arrive so
        self._bytes = 0

    @property
    def commit_offset(self) -> int:
        """Where a successor has to begin: the smallest unfinished offset (mechanism C20)."""
        return next(iter(self._in_flight), self.pull_offset)

    @property
    def progress(self) -> Progress:
        """What is finished, as far as this consumer knows (mechanism C21); of many ranges the lowest ones."""
        gaps = gaps_between(self._in_flight, self.pull_offset)
        return Progress(self.commit_offset, gaps, self.version, self.log_end)

    @property
    def message_count(self) -> int:
        return len(self._in_flight)

    @property
    def byte_count(self) -> int:
        """Of the messages in flight, as they stand in the commit log."""
        return self._bytes

    @property
    def lag(self) -> int:
        """How many messages the queue has that are not consumed, as far as this consumer has heard."""
        return max(0, self.max_offset - self.pull_offset) + len(self._in_flight)

    def must_pause(self) -> bool:
        """Whether flow control forbids the next pull (mechanism C8)."""
        limits = self._flow_control
        return (
            len(self._in_flight) > limits.messages_max
            or self._bytes > limits.bytes_max
            or (limits.span_max is not None and self.pull_offset - 1 - self.commit_offset > limits.span_max)
        )

    def put(self, messages: Sequence[MessageExt], next_begin_offset: int) -> Sequence[MessageExt]:
        """Take what one pull has brought; it may be nothing, when all of it was filtered out.

        Returns what has to be consumed: all but what was finished before.
        """
        offset = self.pull_offset
        for message in messages:
            if message.queue_offset < offset:
                raise AssertionError(f"{message!r} came after offset {offset - 1} of {self.queue}")
            offset = message.queue_offset + 1
        if offset > next_begin_offset:
            raise AssertionError(f"{self.queue} goes on at {next_begin_offset}, inside of what it has brought")
        if self._finished_before:
            messages = [message for message in messages if message.queue_offset not in self._finished_before]
        self._in_flight.update((message.queue_offset, message) for message in messages)
        self._bytes += sum(message.size for message in messages)
        self.pull_offset = next_begin_offset
        return messages

    def sent_back(self, log_end: int) -> None:
        """What a message has become stands in its broker's log below `log_end`."""
        self.log_end = max(self.log_end, log_end)

    def remove(self, messages: Iterable[MessageExt]) -> None:
        """Finished: consumed, or given back. What a reset has forgotten already is ignored."""
        for message in messages:
            if self._in_flight.get(message.queue_offset) is message:
                del self._in_flight[message.queue_offset]
                self._bytes -= message.size

    def first(self, count: int) -> list[MessageExt]:
        """The smallest unfinished messages, at most `count` of them; none of a queue that was dropped."""
        return [] if self.dropped else list(islice(self._in_flight.values(), count))

    def holds(self, message: MessageExt) -> bool:
        """Whether the message still waits to be finished here."""
        return not self.dropped and self._in_flight.get(message.queue_offset) is message

    def reset(self, offset: int) -> None:
        """Begin anew at `offset`, because the broker does not have what was asked for."""
        self._in_flight.clear()
        self._bytes = 0
        self.pull_offset = offset


@dataclass(slots=True)
class Tally:
    """What happened in one slice: calls with their seconds, and messages."""

    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0
    consumes: int = 0
    consume_s: float = 0.0
    consumed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class TopicConsumeStats:
    """One topic at one member in the last minute: means in milliseconds, messages a second (mechanism L12).

    `consume_failed_messages` counts since the consumer started.
    """

    topic: str
    pull_rt_ms: float
    pull_tps: float
    consume_rt_ms: float
    consume_ok_tps: float
    consume_failed_tps: float
    consume_failed_messages: int


@dataclass(slots=True)
class _Topic:
    slices: deque[tuple[int, Tally]] = field(default_factory=lambda: deque(maxlen=SLICES))
    failed: int = 0


class ConsumerStats:
    """How fast one consumer pulls and consumes, by topic, over the last minute. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def pulled(self, topic: str, now: float, seconds: float, messages: int) -> None:
        """A poll has brought something; what it took includes the time for which a broker held it."""
        tally = self._tally(topic, now)
        tally.pulls += 1
        tally.pull_s += seconds
        tally.pulled += messages

    def consumed(self, topic: str, now: float, seconds: float, messages: int, *, success: bool) -> None:
        """The listener has answered."""
        tally = self._tally(topic, now)
        tally.consumes += 1
        tally.consume_s += seconds
        if success:
            tally.consumed += messages
        else:
            tally.failed += messages
            self._topics[topic].failed += messages

    def of_last_minute(self, now: float) -> list[TopicConsumeStats]:
        """By topic, sorted."""
        return [self._stats(topic, now) for topic in sorted(self._topics)]

    def _tally(self, topic: str, now: float) -> Tally:
        slices = self._topics.setdefault(topic, _Topic()).slices
        number = int(now // SLICE_S)
        if not slices or slices[-1][0] != number:
            slices.append((number, Tally()))
        return slices[-1][1]

    def _stats(self, topic: str, now: float) -> TopicConsumeStats:
        oldest = int(now // SLICE_S) - SLICES
        tallies = [tally for number, tally in self._topics[topic].slices if number > oldest]
        pulls, consumes = sum(one.pulls for one in tallies), sum(one.consumes for one in tallies)
        minute_s = SLICE_S * SLICES
        return TopicConsumeStats(
            topic,
            pull_rt_ms=1_000 * sum(one.pull_s for one in tallies) / pulls if pulls else 0.0,
            pull_tps=sum(one.pulled for one in tallies) / minute_s,
            consume_rt_ms=1_000 * sum(one.consume_s for one in tallies) / consumes if consumes else 0.0,
            consume_ok_tps=sum(one.consumed for one in tallies) / minute_s,
            consume_failed_tps=sum(one.failed for one in tallies) / minute_s,
            consume_failed_messages=self._topics[topic].failed,
        )


Finish = Callable[[ProcessQueue, Sequence[MessageExt]], None]  # takes messages out of their queue for good


class GiveBack(Protocol):
    """The handling of a message that was not consumed: send it back, or log it (broadcasting)."""

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
        """Return when no listener runs for this queue that has to end before another member consumes it."""

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
        """Change the limit. Listeners that run go on, also when they exceed it."""
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
    """How many listeners may run, adjusted to what waits (mechanism L10): one more or one less at a time.

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
