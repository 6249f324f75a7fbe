"""The messages of one assigned queue that have been pulled and are not finished (MISSION C8, C20, C21).

Invariants: offsets in flight are below `pull_offset` and arrive in ascending order; the commit offset is the smallest
one in flight, or `pull_offset` when there is none, so that it never passes an unfinished message; what the group had
finished before this consumer began is not taken in again; `log_end` never shrinks, and is behind the retries of all
that was sent back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from mqclient.consumer.progress import FinishedBefore, Progress, gaps_between
from mqclient.message import MessageExt, MessageQueue

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class FlowControl:
    """Above any of these the queue is not pulled (MISSION C8). An orderly consumer has no span: `span_max` is None."""

    messages_max: int = 1_000
    bytes_max: int = 100 * 1024 * 1024
    span_max: int | None = 2_000


class ProcessQueue:
    """State only; who fills and empties it is the pull loop's and the consume service's business."""

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
        """Where a successor has to begin: the smallest unfinished offset (C20)."""
        return next(iter(self._in_flight), self.pull_offset)

    @property
    def progress(self) -> Progress:
        """What is finished, as far as this consumer knows (C21); of many ranges the lowest ones."""
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
        """Whether flow control forbids the next pull (C8)."""
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
