"""The messages of one assigned queue that have been pulled and are not finished (MISSION C8, C20, C21).

Invariants: offsets in flight are below `pull_offset` and arrive in ascending order; the commit offset is the smallest
one in flight, or `pull_offset` when there is none, so that it never passes an unfinished message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqclient.message_ext import MessageExt
from mqclient.message_queue import MessageQueue

PULL_THRESHOLD_MESSAGES = 1_000  # MISSION C8, these three
PULL_THRESHOLD_BYTES = 100 * 1024 * 1024
CONSUME_SPAN_MAX = 2_000


class ProcessQueue:
    """State only; who fills and empties it is the pull loop's and the consume service's business."""

    def __init__(self, queue: MessageQueue, pull_offset: int) -> None:
        self.queue = queue
        self.pull_offset = pull_offset
        self.dropped = False
        self._in_flight: dict[int, MessageExt] = {}  # in ascending order, because they arrive so
        self._bytes = 0

    @property
    def commit_offset(self) -> int:
        """Where a successor has to begin: the smallest unfinished offset (C20)."""
        return next(iter(self._in_flight), self.pull_offset)

    @property
    def message_count(self) -> int:
        return len(self._in_flight)

    def must_pause(self) -> bool:
        """Whether flow control forbids the next pull (C8)."""
        return (
            len(self._in_flight) > PULL_THRESHOLD_MESSAGES
            or self._bytes > PULL_THRESHOLD_BYTES
            or self.pull_offset - 1 - self.commit_offset > CONSUME_SPAN_MAX
        )

    def put(self, messages: Sequence[MessageExt], next_begin_offset: int) -> None:
        """Take what one pull has brought; it may be nothing, when all of it was filtered out."""
        offset = self.pull_offset
        for message in messages:
            if message.queue_offset < offset:
                raise AssertionError(f"{message!r} came after offset {offset - 1} of {self.queue}")
            offset = message.queue_offset + 1
        if offset > next_begin_offset:
            raise AssertionError(f"{self.queue} goes on at {next_begin_offset}, inside of what it has brought")
        for message in messages:
            self._in_flight[message.queue_offset] = message
            self._bytes += message.size
        self.pull_offset = next_begin_offset

    def remove(self, messages: Iterable[MessageExt]) -> None:
        """Finished: consumed, or given back. What a reset has forgotten already is ignored."""
        for message in messages:
            if self._in_flight.get(message.queue_offset) is message:
                del self._in_flight[message.queue_offset]
                self._bytes -= message.size

    def holds(self, message: MessageExt) -> bool:
        """Whether the message still waits to be finished here."""
        return not self.dropped and self._in_flight.get(message.queue_offset) is message

    def reset(self, offset: int) -> None:
        """Begin anew at `offset`, because the broker does not have what was asked for."""
        self._in_flight.clear()
        self._bytes = 0
        self.pull_offset = offset
