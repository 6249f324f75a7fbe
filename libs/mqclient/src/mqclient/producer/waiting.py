"""Messages that have not left yet, and which of them go next.

Most stand in one line, first come, first served. A message whose caller has chosen the queue waits in the lane of that
queue, and with it whatever is sent to the queue after it: at most one such batch of a queue is unanswered at a time.

Invariants: the messages of one queue leave in the order of their numbers; a lane exists while it has messages or while
an ordered batch of its queue is unanswered (it is busy then); it stands in line if and only if it is not busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from mqclient.message import MessageQueue
from mqclient.producer.frames import Batch, FrameDraft, PendingSend

FRAME_MESSAGES_MIN = 32  # below this, what a frame itself costs outweighs the gain of having more of them
FRAMES_IN_STEP = 2  # while the broker works on one frame the client makes the next; more of them cost more


class _Lane:
    """The messages of one queue."""

    __slots__ = ("busy", "messages", "queue")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.busy = False
        self.messages: deque[PendingSend] = deque()


class WaitingSends:
    """The line and the lanes of one broker."""

    def __init__(self) -> None:
        self._line: deque[PendingSend | _Lane] = deque()
        self._lanes: dict[MessageQueue, _Lane] = {}
        self.count = 0  # those that were given up count until they are met

    def __iter__(self) -> Iterator[PendingSend]:
        for one in self._line:
            if isinstance(one, PendingSend):
                yield one
        for lane in self._lanes.values():
            yield from lane.messages

    @property
    def may_send(self) -> bool:
        """Whether `take` is worth calling."""
        return bool(self._line)

    def append(self, pending: PendingSend) -> None:
        self.count += 1
        lane = self._lanes.get(pending.queue) if self._lanes else None
        if lane is None:
            if not pending.terms.in_order:
                self._line.append(pending)
                return
            lane = self._lanes[pending.queue] = _Lane(pending.queue)
            self._line.append(lane)
        lane.messages.append(pending)

    def take(self, unanswered_count: int) -> list[Batch]:
        """The batches of the next frame: its share of what waits and is unanswered. Empty when all were given up."""
        draft = FrameDraft(max(FRAME_MESSAGES_MIN, -(-(self.count + unanswered_count) // FRAMES_IN_STEP)))
        line = self._line
        while line:
            before = len(line)
            draft.fill_from(line)
            self.count -= before - len(line)
            if not line or not isinstance(line[0], _Lane) or not self._take_from_lane(line[0], draft):
                break
            line.popleft()
        return draft.batches

    def answered(self, queue: MessageQueue) -> None:
        """The ordered batch of this queue has its answer, or will not be sent again: the next one may follow."""
        lane = self._lanes[queue]
        lane.busy = False
        if lane.messages:
            self._line.append(lane)
        else:
            del self._lanes[queue]

    def followers(self, queue: MessageQueue) -> list[PendingSend]:
        """The messages that must not be stored when an earlier one of their queue was not."""
        lane = self._lanes.get(queue)
        return [pending for pending in lane.messages if pending.terms.in_order] if lane is not None else []

    def drop_given_up(self) -> None:
        """Forget the messages that no caller waits for any more."""
        self._line = deque(one for one in self._line if isinstance(one, _Lane) or not one.future.done())
        for lane in self._lanes.values():
            lane.messages = deque(pending for pending in lane.messages if not pending.future.done())
        self.count = sum(1 for _ in self)

    def _take_from_lane(self, lane: _Lane, draft: FrameDraft) -> bool:
        """Move what may go into the draft; False when the lane could send more and the frame is full."""
        before = len(lane.messages)
        lane.busy = draft.fill_from(lane.messages) is not None
        self.count -= before - len(lane.messages)
        if lane.messages and not lane.busy:
            return False
        if not lane.busy:
            del self._lanes[lane.queue]
        return True
